"""The command line: `root` is `streamward`, and each other module a family of its commands."""


def main() -> None:
    """Run the command line; the entry point of `streamward`."""
    from streams.cli.root import cli

    cli(prog_name="streamward")
