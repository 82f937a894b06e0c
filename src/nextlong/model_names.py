"""Model names: whether what a user calls a model can be one, told before a library is loaded or the hub asked."""

from __future__ import annotations

from pathlib import Path


def why_no_model(name: str) -> str:
    """Return why a name is neither a model's folder nor a name on the Hugging Face hub, with the cure; "" if it may be one."""
    path = Path(name).expanduser()
    cure = "name a folder with config.json and weights, as `save_pretrained` writes it, or one of the Hugging Face hub (org/name)"
    if path.is_dir():
        return "" if (path / "config.json").is_file() else f"is not a model: it has no config.json; {cure}"
    if path.exists():
        return f"is not a model but a file; {cure}"
    is_path = name.startswith((".", "~", "/")) or name.endswith("/") or name.count("/") > 1
    return f"is not there; {cure}" if is_path else ""


def first_sentence(error: BaseException) -> str:
    """Return the first line of a library's message, without its last dot; never empty."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__).rstrip(".")
