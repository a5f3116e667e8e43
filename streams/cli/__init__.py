"""The command line: `root` is `streamward`, and each other module a family of its commands."""


def main() -> None:
    """Run the command line; the entry point of `streamward`."""
    import atexit
    import gc

    from streams.cli.root import cli

    atexit.register(gc.freeze)  # memory is given back as a whole: to search it for garbage first took torch a second
    cli(prog_name="streamward")
