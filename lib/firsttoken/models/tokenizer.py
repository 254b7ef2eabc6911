"""Text to token ids and back: byte-level BPE, so that every string survives."""

import codecs
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from firsttoken.models.gguf import read_gguf
from firsttoken.paths import data_path, smollm2_path

# What a text is cut into before pairs are merged, under llama.cpp's names.
_BYTES = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
_SINGLE_DIGITS = [tokenizers.pre_tokenizers.Digits(individual_digits=True), _BYTES]


def _by(numbers: str) -> list:
    """Cut by a pattern of GPT-4's kind, which differ in how long a run of digits may be."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + numbers
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    as_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"), as_bytes]


_CUTS: dict[str, list] = {
    "gpt-2": [_BYTES],
    "smollm": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,  # Granite 3
    "qwen2": _by(r"\p{N}"),
    "llama-bpe": _by(r"\p{N}{1,3}"),
}
# The bytes that UTF-8 uses: none says C0, C1 or F5 and above.
_BYTES_OF_TEXT = {*range(0xC0), *range(0xC2, 0xF5)}
# llama.cpp's numbers for a token that is a mark, and for a piece of text that is never cut.
_CONTROL, _ADDED = 3, 4


class Tokenizer:
    """A byte-level tokenizer: a token stands for a run of bytes, a text for its UTF-8 bytes.

    Any string therefore encodes, and decodes to itself where the tokenizer is `lossless`, as the
    shipped one is: some files change a text before they cut it, by a normaliser (Qwen's joins e
    and its accent) or a space before the first word, and some know no token for a rare byte and
    drop it (SmolLM2's six control characters). Special tokens are marks between texts: no
    text encodes to one, not even its own name, and they decode to nothing.

    A character may be split between tokens. `decode` shows incomplete bytes as U+FFFD;
    `TextStream` holds them back until the rest has come.

    `eos_id` is the token that ends a text, None where tokenizer_config.json names none. `start_ids`
    are what a document begins with, see `encode_document`. `special_tokens` maps names to ids,
    `special_names` says which are the `bos_token` and the `eos_token`, and `chat_template` is the
    model's own, for `chat.ChatTemplate`.

    >>> tok = tokenizer()
    >>> tok.decode(tok.encode("naïve\\t🙂")) == "naïve\\t🙂"
    True
    """

    def __init__(self, path: str | Path):
        path = Path(path)
        read = _from_gguf if path.suffix == ".gguf" else _from_json
        self._tokenizer, config = read(path / "tokenizer.json" if path.is_dir() else path)
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._bytes = _token_bytes(self._tokenizer, path)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_tokens = {mark.content: i for i, mark in added.items() if mark.special}
        self.special_names = {
            name: config[name]["content"] if isinstance(config[name], dict) else config[name]
            for name in ("bos_token", "eos_token")
            if config.get(name)
        }
        self.chat_template: str | None = config.get("chat_template")
        self.eos_id = self._id(config.get("eos_token"))
        self.start_ids = self._start(config)
        cutting = json.dumps(json.loads(self._tokenizer.to_str())["pre_tokenizer"])
        adds_space = '"add_prefix_space": true' in cutting
        known = {token[0] for token in self._bytes if len(token) == 1}
        self.lossless = (
            self._tokenizer.normalizer is None and not adds_space and known >= _BYTES_OF_TEXT
        )

    def _id(self, token: str | dict[str, str] | None) -> int | None:
        """Return the id of a token as a config names it, None for one that is not there."""
        name = token["content"] if isinstance(token, dict) else token
        return None if name is None else self._tokenizer.token_to_id(name)

    def _start(self, config: dict) -> tuple[int, ...]:
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        framed = self._tokenizer.encode("a").ids
        if framed != plain:
            n = next(i for i in range(len(framed)) if framed[i : i + len(plain)] == plain)
            return tuple(framed[:n])
        if not config.get("add_bos_token", True):
            return ()
        # Where a config is silent about a token that begins, the one that ends stands between all.
        start = self._id(config["bos_token"]) if "bos_token" in config else self.eos_id
        return () if start is None else (start,)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; nothing is added before or behind.

        Raises: ValueError for a string that is no text: one with unpaired surrogates.
        """
        try:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        except TypeError:
            raise ValueError(f"text must be a string without surrogates, got {text!r}") from None

    def encode_document(self, text: str) -> list[int]:
        """Return the ids of a text as a document of its own, behind what such a one begins with.

        That is what the tokenizer's own template puts before a text (Llama 3), else its bos_token,
        the shipped model's `<|endoftext|>`; nothing where tokenizer_config.json says so by
        `"bos_token": null` or `"add_bos_token": false` (Qwen). Where it names no bos_token at all,
        it is the token that ends a text, which then stands between all of them.

        Raises: ValueError as `encode`, and where a document begins with nothing (no `start_ids`):
                then nothing predicts its first token.
        Source: transformers, tokenization_utils_base.py, bos_token; tokenizers, TemplateProcessing

        >>> tokenizer().encode_document("")
        [0]
        """
        if not self.start_ids:
            raise ValueError("tokenizer has no start_ids, which a document begins with; got none")
        return [*self.start_ids, *self.encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids; bytes that form no character become U+FFFD.

        Raises: ValueError for an id outside the vocabulary.
        """
        return b"".join(self.token_bytes(i) for i in ids).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that one token stands for; none for a special token.

        >>> tokenizer().token_bytes(0)
        b''
        """
        if not 0 <= token_id < len(self._bytes):
            raise ValueError(f"token id {token_id} is outside 0 … {len(self._bytes) - 1}")
        return self._bytes[token_id]

    def token_name(self, token_id: int) -> str:
        """Return how the tokenizer's own file calls a token: the name of a special one.

        Raises: ValueError for an id outside the vocabulary.

        >>> tokenizer().token_name(0)
        '<|endoftext|>'
        """
        self.token_bytes(token_id)
        return str(self._tokenizer.id_to_token(token_id))


class TextStream:
    """Decode ids one at a time: `push` returns the text that is certain by now.

    The pieces and `finish` together are `decode` of all ids.

    >>> tok = tokenizer()
    >>> stream = TextStream(tok)
    >>> [stream.push(i) for i in tok.encode("é€")][-1], stream.finish()
    ('€', '')
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; it may be empty."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """Return what is left: U+FFFD if the last character never became complete."""
        return self._decoder.decode(b"", final=True)


def tokenizer(path: str | Path | None = None) -> Tokenizer:
    """Load the shipped tokenizer, "smollm2"'s, or that of a tokenizer.json, directory or GGUF file.

    It must be byte-level BPE. Of a GGUF file's ways to cut a text, those of GPT-2, SmolLM2, Granite
    3, Qwen 2 to 3 and Llama 3 are known.

    Raises: ValueError that names the file: missing, unreadable, or of another kind.
    """
    if path == "smollm2":
        path = smollm2_path()
    return Tokenizer(data_path("model/tokenizer.json") if path is None else path)


def _from_json(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Read a tokenizer.json, and what tokenizer_config.json beside it says."""
    try:
        library = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"{path} is not a tokenizer: {error}") from None
    file = path.with_name("tokenizer_config.json")
    config = json.loads(file.read_text("utf-8")) if file.exists() else {}
    template = path.with_name("chat_template.jinja")
    return library, config | (
        {"chat_template": template.read_text("utf-8")} if template.exists() else {}
    )


def _from_gguf(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Read a GGUF file's tokenizer, and what tokenizer_config.json would say of it."""
    file = read_gguf(path)
    model_kind = file.value("tokenizer.ggml.model", str)
    if model_kind != "gpt2":
        raise ValueError(
            f"tokenizer.ggml.model {model_kind!r} in {path}: expected 'gpt2', which is BPE"
        )
    cut = file.value("tokenizer.ggml.pre", str)
    if cut not in _CUTS:
        known = ", ".join(map(repr, _CUTS))
        raise ValueError(f"tokenizer.ggml.pre {cut!r} in {path}: expected one of {known}")
    names = file.value("tokenizer.ggml.tokens", list)
    kinds = file.value("tokenizer.ggml.token_type", list)
    pairs = [tuple(pair.split(" ")) for pair in file.value("tokenizer.ggml.merges", list)]
    try:
        vocabulary = {name: i for i, name in enumerate(names)}
        # Llama 3 has words that no merges lead to.
        model = tokenizers.models.BPE(vocabulary, pairs, ignore_merges=cut == "llama-bpe")
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"{path} holds no tokenizer: {error}") from None
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(_CUTS[cut])
    if cut == "qwen2":
        library.normalizer = tokenizers.normalizers.NFC()
    for number, add in ((_CONTROL, library.add_special_tokens), (_ADDED, library.add_tokens)):
        of_kind = [name for name, kind in zip(names, kinds, strict=True) if kind == number]
        add([tokenizers.AddedToken(name, normalized=False) for name in of_kind])
    config: dict[str, Any] = {
        f"{which}_token": names[file.value(f"tokenizer.ggml.{which}_token_id", int)]
        for which in ("bos", "eos")
        if f"tokenizer.ggml.{which}_token_id" in file.metadata
    }
    return library, config | {
        "add_bos_token": file.value("tokenizer.ggml.add_bos_token", bool, False),
        "chat_template": file.metadata.get("tokenizer.chat_template"),
    }


def _token_bytes(library: tokenizers.Tokenizer, path: Path) -> list[bytes]:
    """Return the bytes of every token, by id."""
    byte_of = {char: byte for byte, char in enumerate(_byte_characters())}
    added = library.get_added_tokens_decoder()  # these are stored as plain text
    table = []
    for token_id in range(library.get_vocab_size()):
        if token_id in added:
            mark = added[token_id]
            table.append(b"" if mark.special else mark.content.encode("utf-8"))
            continue
        chars = library.id_to_token(token_id)
        if chars is None or not byte_of.keys() >= set(chars):
            raise ValueError(
                f"{path} is not byte-level: token {token_id} is {chars!r}, expected byte characters"
            )
        table.append(bytes(byte_of[char] for char in chars))
    return table


def _byte_characters() -> list[str]:
    """Return the printable character that stands for each byte in a byte-level vocabulary.

    Printable Latin-1 stands for itself; the other bytes take the characters from U+0100 on.

    Source: openai/gpt-2, src/encoder.py, bytes_to_unicode
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    substitutes = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(substitutes)) for byte in range(256)]
