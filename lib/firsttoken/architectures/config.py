"""A `config.json`: found, checked, and asked by the names that most families use."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

# Layers are counted one by one: with a billion of them, which only a slip or a joke asks for, the
# closed forms would not come to an end.
MOST_LAYERS = 10_000

# One name per quantity: what calls it something else is translated first.
ALIASES = {
    "n_embd": "hidden_size",
    "n_embed": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
    "rotary_emb_base": "rope_theta",
    "n_routed_experts": "num_local_experts",
    "num_experts": "num_local_experts",
    "experts_per_token": "num_experts_per_tok",
}


class Config(Mapping[str, Any]):
    """What a config says, and what its type says where it is silent.

    Raises: ValueError that names the key, what came and what was expected.
    """

    def __init__(self, given: Mapping[str, Any]):
        self.given = given
        self.asked: set[str] = set()
        self.type = str(given.get("model_type"))
        defaults = dict(_defaults().get(self.type, {}))
        self._own: Mapping[str, str] = defaults.pop("aliases", {})
        self._values = self._named(defaults) | self._named(given)
        self._called = {self._name(name): name for name in given}
        for name in ("num_hidden_layers", "num_attention_heads", "hidden_size"):
            value = self._values.get(name)
            if value is not None and (not _is_count(value) or value < 1):
                raise self.wrong(name, "a positive integer")
        if (self.get("num_hidden_layers") or 0) > MOST_LAYERS:
            raise self.wrong("num_hidden_layers", f"at most {MOST_LAYERS:,}")

    def _named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {self._name(name): value for name, value in values.items()}

    def _name(self, name: str) -> str:
        own = self._own.get(name, name)
        return ALIASES.get(own, own)

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return self._values[self._name(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def wrong(self, name: str, expected: str) -> ValueError:
        """Return the error that says what was expected of a key, by its name in the config."""
        called = self._called.get(self._name(name), name)
        return ValueError(f"config: {called} must be {expected}, got {self.get(name)!r}")

    def count(self, name: str, default: int | None = None, at_least: int = 0) -> int:
        """Return an integer; `default` where the config has none, or null."""
        value = self.maybe(name, at_least)
        if value is not None:
            return value
        if default is None:
            raise ValueError(f"config: {name} is missing, expected an integer")
        return default

    def maybe(self, name: str, at_least: int = 0) -> int | None:
        """Return an integer, or None where the config has none."""
        value = self.get(name)
        if value is None:
            return None
        if not _is_count(value) or value < at_least:
            raise self.wrong(name, f"an integer of at least {at_least}")
        return int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return whether the config says so."""
        value = self.get(name)
        if value is None or value in (True, False):
            return default if value is None else bool(value)
        raise self.wrong(name, "true or false")

    def items_of(self, name: str) -> Sequence[Any] | None:
        """Return a list, or None where the config has none."""
        value = self.get(name)
        if value is None or (isinstance(value, Sequence) and not isinstance(value, str)):
            return value
        raise self.wrong(name, "a list")

    def object(self, name: str) -> Mapping[str, Any]:
        """Return an object; an empty one where the config has none."""
        value = self.get(name)
        if value is None or isinstance(value, Mapping):
            return value or {}
        raise self.wrong(name, "an object")

    def per_layer(self, name: str, default: int | None = None, at_least: int = 0) -> list[int]:
        """Return one integer for each layer, where a config says one for all, or a list."""
        value = self.get(name)
        if not isinstance(value, Sequence) or isinstance(value, str):
            return [self.count(name, default, at_least)] * self.n_layers
        if len(value) < self.n_layers or not all(map(_is_count, value)):
            raise self.wrong(name, f"one integer for each of {self.n_layers} layers")
        return [int(one) for one in value[: self.n_layers]]

    @property
    def n_layers(self) -> int:
        return self.count("num_hidden_layers", at_least=1)

    @property
    def width(self) -> int:
        return self.count("hidden_size", at_least=1)

    @property
    def n_heads(self) -> int:
        return self.count("num_attention_heads", at_least=1)

    @property
    def n_kv_heads(self) -> int:
        return self.count("num_key_value_heads", self.n_heads, at_least=1)

    @property
    def head_dim(self) -> int:
        return self.count("head_dim", self.width // self.n_heads, at_least=1)

    def layer_types(self) -> list[str] | None:
        """Return the kind of each layer, where the config lists them."""
        kinds = self.items_of("layer_types")
        if kinds is None:
            return None
        if len(kinds) < self.n_layers:
            raise ValueError(
                f"config: layer_types must name {self.n_layers} layers, got {len(kinds)}"
            )
        return [str(kind) for kind in kinds[: self.n_layers]]


def open_config(config: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the content of a config: a file, the folder that holds it, or the content itself.

    Raises: ValueError for a file that is missing or holds no JSON object.
    """
    if isinstance(config, Mapping):
        return config
    path = Path(config)
    file = path / "config.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"config: there is no file {file}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"config: {file} is not a readable JSON file ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"config: {file} holds a {type(content).__name__}, expected an object")
    return content


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@cache
def _defaults() -> dict[str, dict[str, Any]]:
    text = files("firsttoken.architectures").joinpath("defaults.json").read_text(encoding="utf-8")
    return json.loads(text)["types"]
