"""A storage backend for TransferQueue, verl's queue of trajectories: importing this registers it as `Streamward`.

    verl ──► transfer_queue ──► StorageManager ──► plugins/verl ──► the log

verl imports it by itself (its entry points `verl.plugins`). A program that uses TransferQueue alone imports this module
before `transfer_queue.init()`, in each of its processes; `register` is for Ray's `worker_process_setup_hook`.
docs/verl.md has the settings.
"""

from plugins.verl.transfer_queue import bootstrap, storage_client, storage_manager

__all__ = ["bootstrap", "register", "storage_client", "storage_manager"]


def register() -> None:
    """Do nothing: importing this module has registered the backend."""
