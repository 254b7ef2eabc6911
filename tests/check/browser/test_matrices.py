"""The page's products with matrices in GGUF's formats are those of the unpacked matrices."""

import base64
from types import SimpleNamespace

import numpy as np
import pytest

from browser.bundling import bundler
from firsttoken.quantization import unpack_gguf
from firsttoken.quantization.gguf import GGUF_LAYOUTS

RNG = np.random.default_rng(0)
MODULE = """
import { openMatrices } from "./matrix.js";
import { openKernel } from "./memory.js";
window.engine = { openKernel, openMatrices };
"""
# A page's answers: the matrix row by row, and the products with the first `rows` rows of x for each
# number of rows. The matrix begins at an odd address, as it may in a file. What lies behind y must
# stay as it was.
ASK = """({kind, inputs, outputs, packed, x, allRows, rounded, relaxed}) => {
    const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const text = (numbers) => {
        const all = new Uint8Array(numbers.slice().buffer);
        return btoa(Array.from(all, (byte) => String.fromCharCode(byte)).join(""));
    };
    const heap = window.engine.openKernel();
    const { validate } = WebAssembly;
    if (!relaxed) WebAssembly.validate = () => false;
    const matrices = window.engine.openMatrices(heap);
    WebAssembly.validate = validate;
    const put = (data, extra) => {
        const at = heap.take(data.length + extra) + extra;
        new Uint8Array(heap.kernel.memory.buffer).set(data, at);
        return at;
    };
    const matrix = { kind, at: put(bytes(packed), 1), inputs, outputs };
    const atX = put(bytes(x), 0);
    const size = 32 * outputs;
    const atY = heap.take((size + 16) * 4);
    const atRow = heap.take(inputs * 4);
    const numbers = (at, n) => new Float32Array(heap.kernel.memory.buffer, at, n);
    const unpacked = new Float32Array(outputs * inputs);
    for (let row = 0; row < outputs; row += 1) {
        matrices.row(matrix, row, atRow);
        unpacked.set(numbers(atRow, inputs), row * inputs);
    }
    const products = allRows.map((rows) => {
        numbers(atY, size + 16).fill(NaN);
        matrices.round(rounded);
        matrices.multiply(atX, rows, matrix, atY);
        const behind = numbers(atY, size + 16).subarray(rows * outputs);
        if (!behind.every(Number.isNaN)) throw new Error("something lies behind y");
        return text(numbers(atY, rows * outputs));
    });
    return { unpacked: text(unpacked), products };
}"""
KINDS = ["f32", "f16", "bf16", *GGUF_LAYOUTS]
ROUNDED = ["q8_0", "q4_0", "q4_1"]
ALL_ROWS = [1, 2, 3, 4, 5, 8, 31, 32]
# Sums of up to 1,536 products, in another order than NumPy's, may be off by so much of the sum of
# their magnitudes. One f32 rounds by 6e-8, and 3e-7 was measured; a code taken wrongly gives 1e-4.
TOLERANCE = 2e-6


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """A page that has matrix.js."""
    bundle = bundler()
    bundle.PARTS = folder = tmp_path_factory.mktemp("matrices")
    bundle.kernels()
    engine = bundle.LIVE / "engine"
    (folder / "entry.js").write_text(MODULE.replace("./", f"{engine}/"))
    bundle.esbuild(folder / "entry.js", folder / "matrices.js", "--loader:.wasm=binary")
    page = browser.new_page()
    page.add_script_tag(content=(folder / "matrices.js").read_text("utf-8"), type="module")
    page.wait_for_function("() => Boolean(window.engine)")
    yield page
    page.close()


def halves(*shape):
    """Scales of all magnitudes of float16, subnormal ones and negative ones too."""
    exponents = RNG.integers(-24, 4, shape)
    return np.ldexp(RNG.standard_normal(shape), exponents).astype(np.float16)


def random_matrix(kind, outputs, inputs):
    """Bytes of a matrix, uint8 (outputs, bytes of a row), and its numbers, float32."""
    if kind == "f32":
        w = RNG.standard_normal((outputs, inputs)).astype(np.float32)
        return w.view(np.uint8), w
    if kind == "f16":
        w = halves(outputs, inputs)
        return w.view(np.uint8), w.astype(np.float32)
    if kind == "bf16":
        w = RNG.standard_normal((outputs, inputs)).astype(np.float32)
        upper = (w.view(np.uint32) >> 16).astype(np.uint16)
        return upper.view(np.uint8), (upper.astype(np.uint32) << 16).view(np.float32)
    layout = GGUF_LAYOUTS[kind]
    size = layout.fields.itemsize
    packed = RNG.integers(0, 256, (outputs, inputs // layout.n_numbers, size), dtype=np.uint8)
    fields = packed.view(layout.fields)[..., 0]
    for name in {"scale", "offset"} & set(layout.fields.names):
        fields[name] = halves(*fields.shape)
    packed = packed.reshape(outputs, -1)
    return packed, unpack_gguf(packed, kind)


def rounded_to_codes(x):
    """What x (rows, n) becomes: codes of eight bits times a scale, 32 numbers at a time."""
    blocks = x.reshape(len(x), -1, 32)
    scales = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    return (np.rint(blocks * inverse).astype(np.float64) * scales).reshape(x.shape)


def asked(page, kind, packed, x, outputs, **options):
    def text(numbers):
        return base64.b64encode(np.ascontiguousarray(numbers).tobytes()).decode()

    def numbers(text):
        return np.frombuffer(base64.b64decode(text), np.float32)

    question = {"rounded": False, "relaxed": True, "allRows": ALL_ROWS} | options
    question |= {"kind": kind, "inputs": x.shape[1], "outputs": outputs}
    answer = page.evaluate(ASK, question | {"packed": text(packed), "x": text(x)})
    products = [numbers(product).reshape(-1, outputs) for product in answer["products"]]
    unpacked = numbers(answer["unpacked"]).reshape(outputs, -1)
    return SimpleNamespace(unpacked=unpacked, products=products)


def check_products(products, x, w):
    expected, magnitudes = x.astype(np.float64) @ w.T, np.abs(x) @ np.abs(w.T).astype(np.float64)
    for rows, product in zip(ALL_ROWS, products, strict=True):
        error = np.abs(product - expected[:rows])
        assert (error <= TOLERANCE * magnitudes[:rows]).all(), f"{rows} rows"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outputs, inputs", [(1, 256), (7, 512), (33, 1536)])
def test_products_are_those_of_the_unpacked_matrix(page, kind, outputs, inputs):
    packed, w = random_matrix(kind, outputs, inputs)
    x = RNG.standard_normal((32, inputs)).astype(np.float32)
    got = asked(page, kind, packed, x, outputs)
    np.testing.assert_array_equal(got.unpacked, w)
    check_products(got.products, x, w)


@pytest.mark.parametrize("kind", ROUNDED)
@pytest.mark.parametrize("outputs, inputs", [(1, 32), (7, 96), (33, 1536)])
def test_rounded_products_are_those_of_rounded_numbers(page, kind, outputs, inputs):
    packed, w = random_matrix(kind, outputs, inputs)
    x = RNG.standard_normal((32, inputs)).astype(np.float32)
    x[1, :32] = 0
    got = asked(page, kind, packed, x, outputs, rounded=True)
    plain = asked(page, kind, packed, x, outputs, rounded=True, relaxed=False)
    check_products(got.products, rounded_to_codes(x), w)
    for rows, product, other in zip(ALL_ROWS, got.products, plain.products, strict=True):
        np.testing.assert_array_equal(product, other)
        np.testing.assert_array_equal(product, got.products[-1][:rows])


@pytest.mark.parametrize("kind", ROUNDED)
def test_a_scale_that_is_no_number_gives_no_number(page, kind):
    packed, _ = random_matrix(kind, 6, 64)
    fields = packed.reshape(6, 2, -1).view(GGUF_LAYOUTS[kind].fields)[..., 0]
    for name in {"scale", "offset"} & set(fields.dtype.names):
        fields[name][:, 1] = RNG.permutation(np.float16([np.inf, -np.inf, np.nan, 1, 0, 65504]))
    w = unpack_gguf(packed, kind)
    x = RNG.standard_normal((32, 64)).astype(np.float32)
    for rounded in (False, True):
        got = asked(page, kind, packed, x, 6, rounded=rounded)
        np.testing.assert_array_equal(got.unpacked, w)
        for product in got.products:
            assert (np.isfinite(product) == np.isfinite(w).all(axis=1)).all()
