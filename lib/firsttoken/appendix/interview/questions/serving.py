"""Questions about part IV: serving many."""

import math

import numpy as np

from firsttoken.appendix.interview.question import Choice, Explain, InterviewQuestion, Number
from firsttoken.appendix.interview.questions.facts import (
    CARD,
    H100,
    LLAMA_8B,
    LLAMA_13B,
    LLAMA_70B,
    SHAPE_8B,
    SHAPE_70B,
)
from firsttoken.batching import Request, StepRecord, simulate
from firsttoken.hardware import LINKS
from firsttoken.kv_cache import kv_cache_bytes, max_context
from firsttoken.metrics import littles_law
from firsttoken.paging import BlockPool, last_block_waste
from firsttoken.parallel import (
    all_reduce_bytes,
    kv_share,
    pipeline_bubble,
    ring_all_reduce_s,
)
from firsttoken.throughput import prefill
from firsttoken.units import GB, GIB

_OUTPUTS = (10, 40, 80, 270)


def _static_share() -> float:
    """Return the percentage of places used while a static batch of four runs to its end."""
    steps: list[int] = []
    requests = [Request(0.0, 1, n) for n in _OUTPUTS]
    simulate(requests, "static", lambda *_: 1.0, max_batch=4, on_step=lambda _: steps.append(1))
    return 100 * sum(_OUTPUTS) / (4 * len(steps))


_LINEAR_8K_S = 2 * LLAMA_13B.n_matmul_params * 8192 / H100.peak()
_IN_FLIGHT = {"rate": 5, "time": 20}


def _flight_bytes(tokens: int) -> float:
    return littles_law(**_IN_FLIGHT) * kv_cache_bytes(LLAMA_8B, tokens)


BATCHING = (
    Number(
        id="batching-static-share",
        chapter="14_batching",
        section="A bus that waits for its last passenger",
        level=1,
        text="A static batch of four requests writes 10, 40, 80 and 270 tokens, and a step gives "
        "each running request one. Nobody joins before the last is done. Over all steps, which "
        "share of the four places is used, in percent?",
        answer=_static_share,
        unit="%",
        slips=(
            (
                lambda: 100 - _static_share(),
                "That is the share that stands idle.",
            ),
            (
                lambda: 100 * max(_OUTPUTS) / sum(_OUTPUTS),
                "That is the longest answer's share of the tokens, not the use of the places.",
            ),
            (lambda: 100, "Who is done leaves a place that nobody takes."),
        ),
        worked=lambda: (
            "400 tokens in 4 places over 270 steps: 400 / 1,080 = "
            f"{_static_share():.0f} %. A continuous batch gives a free place to the next in line."
        ),
    ),
    Number(
        id="batching-prefill-stall",
        chapter="14_batching",
        section="A long prompt freezes every stream",
        level=2,
        text=f"{CARD} "
        "A prompt of 8,192 tokens of Llama-2-13B is computed in one pass, at the peak rate of "
        f"the card. A token meets {LLAMA_13B.n_matmul_params / 1e9:.2f} billion weights in "
        "matrices, and causal attention adds 2 · 40 layers · 5,120 · n² FLOPs for n tokens. For "
        "how many milliseconds does every stream of the batch stand still?",
        answer=lambda: 1e3 * prefill(LLAMA_13B, H100, 8192),
        unit="ms",
        slips=(
            (lambda: 1e3 * _LINEAR_8K_S, "Attention over 8,192 tokens is missing."),
            (
                lambda: 1e3 * (2 * prefill(LLAMA_13B, H100, 8192) - _LINEAR_8K_S),
                "You counted attention twice as large: the causal mask hides half of the pairs.",
            ),
            (
                lambda: 1e3 * LLAMA_13B.n_params * 2 / H100.bandwidth,
                "That is reading the weights once. A prompt this long waits for the arithmetic.",
            ),
        ),
        worked=lambda: (
            f"Matrices: {1e3 * _LINEAR_8K_S:.0f} ms. With attention "
            f"{1e3 * prefill(LLAMA_13B, H100, 8192):.0f} ms. Cut into chunks, the prompt takes a "
            "little longer, and streams pause for one chunk at a time."
        ),
    ),
    Number(
        id="batching-cache-in-flight",
        chapter="14_batching",
        section="Who may join, and who must go",
        level=2,
        text=f"{SHAPE_8B} "
        "5 requests per second arrive, and each holds its cache for 20 s on average. Averaged over "
        "time, a sequence in flight has 3,000 tokens. How many GB (10⁹ bytes) "
        "of bf16 cache are in use on average, with nothing shared?",
        answer=lambda: _flight_bytes(3000) / GB,
        unit="GB",
        slips=(
            (lambda: _flight_bytes(3000) / GIB, "That is the number of GiB."),
            (
                lambda: 5 * kv_cache_bytes(LLAMA_8B, 3000) / GB,
                "That is one second's arrivals. By Little's law 5 · 20 are in flight.",
            ),
            (lambda: _flight_bytes(3000) / 2 / GB, "Keys and values: the factor 2 is missing."),
        ),
        worked=lambda: (
            "Little's law: 100 requests in flight, times 3,000 tokens, times 131,072 B: "
            f"{_flight_bytes(3000) / GB:.1f} GB. On average; plan for more."
        ),
    ),
    Choice(
        id="batching-chunked-pays",
        chapter="14_batching",
        section="A long prompt freezes every stream",
        level=2,
        text="An engine computed whole prompts between decode steps. Now it cuts them into chunks "
        "that share a step with the decodes. Who pays, at the same moderate load?",
        right="The long prompt: its own first token comes later",
        worked="It takes more steps, each of which also carries decodes and reads the keys of all "
        "earlier chunks again. In return no stream stands still for a whole prompt.",
        wrong=(
            (
                "The decoding streams: their longest gaps grow",
                "Their longest gaps shrink. That is what chunks are for.",
            ),
            (
                "Nobody: the same work is done in another order",
                "Some work is added: each chunk reads the keys of the chunks before it.",
            ),
            (
                "The quality: attention across chunks is left out",
                "A chunk attends to all earlier ones through the cache. The result is the same.",
            ),
        ),
    ),
    Choice(
        id="batching-temperature-zero",
        chapter="14_batching",
        section="One product for all, attention for each",
        level=2,
        text="At temperature 0, the same prompt to the same server gives two different answers on "
        "a busy day. No code changed, and nothing is sampled. What is the likeliest reason?",
        right="Other neighbours in the batch: sums round otherwise",
        worked="The shape of a pass chooses kernels and splits of sums. Logits move in their last "
        "bits, and where two tokens are nearly tied, another one wins; from there the texts part. "
        "Kernels that are invariant to the batch avoid it, at a price.",
        wrong=(
            (
                "Other requests' keys and values leak into the cache",
                "That would be a grave bug, with nonsense, not a well-formed other answer.",
            ),
            (
                "Temperature 0 still draws a token, from among the two best ones",
                "It takes the largest logit. What changed is which one is largest.",
            ),
            (
                "The prefix cache returns an older answer",
                "It returns keys and values of the prompt, never answers.",
            ),
        ),
    ),
    Explain(
        id="batching-p99-gaps",
        chapter="14_batching",
        section="A long prompt freezes every stream",
        level=3,
        text="Median and mean time per token are good, but users complain that text stops now and "
        "then: the longest gap of a request is often 800 ms. Which causes do you consider, how do "
        "you tell them apart, and what helps against each?",
        worked="Prompts computed whole between decode steps: the gap is as long as a prefill and "
        "coincides with a long prompt in the step log. Chunked prefill, or prefill on other "
        "machines, helps. Preemption: memory ran out, a request lost its blocks and was computed "
        "again; the log counts it, and it hits single requests. Admit fewer or add memory. Stalls "
        "of the host or the network: garbage collection, logging, a proxy that buffers; then step "
        "times are fine, and the clock of the client differs from that of the server. Speculation "
        "makes bursts, whose gaps belong to the design. Compare, per step: number of prompt "
        "tokens, number of preemptions, duration; and per request where its longest gap lies. "
        "Watch the longest gap per request, since means and even the p99 over all gaps hide it.",
        points=(
            "Whole prefills between decode steps; chunked or separate prefill helps",
            "Preemption when cache memory runs out; admit fewer, or more memory",
            "Host or network stalls: compare the server's clock with the client's",
            "Tell apart by a log per step: prompt tokens, preemptions, duration",
            "Measure the longest gap per request; mean and median hide it",
        ),
    ),
)

_LENGTHS = np.array([10, 17, 33, 64, 65, 100])
_WASTE = last_block_waste(_LENGTHS, 16)


def _parallel_blocks() -> int:
    """Return the blocks in use when 4 answers of 200 tokens to one prompt of 1,000 are written."""
    pool = BlockPool(n_blocks=1000, block_size=16)
    pool.allocate(0, list(range(1000)))
    for answer in (1, 2, 3):
        pool.fork(0, answer)
    for token in range(200):
        for answer in range(4):
            pool.append(answer, token)
    return pool.usage().used


def _computed_tokens() -> int:
    """Return the tokens of a second prompt that a prefix cache does not have: 2,010 are shared."""
    pool = BlockPool(n_blocks=1000, block_size=16, prefix_caching=True)
    shared = list(range(2010))
    pool.allocate("first", [*shared, *range(5000, 5090)])
    return 2100 - pool.allocate("second", [*shared, *range(6000, 6090)])


_PCIE = LINKS["PCIe-5"]
_LOAD_S = kv_cache_bytes(LLAMA_8B, 8192) / _PCIE.bandwidth
_RECOMPUTE_S = prefill(LLAMA_8B, H100, 8192)

PAGING = (
    Number(
        id="paging-last-block",
        chapter="15_paging",
        section="Three wastes",
        level=1,
        text="Six sequences hold 10, 17, 33, 64, 65 and 100 tokens in blocks of 16, nothing is "
        "shared, and blocks are allocated when needed. Which share of the allocated places is "
        "empty, in percent?",
        answer=lambda: 100 * _WASTE.sum() / (_LENGTHS + _WASTE).sum(),
        unit="%",
        slips=(
            (
                lambda: 100 * _WASTE.sum() / _LENGTHS.sum(),
                "That is in percent of the tokens. The question asks for places.",
            ),
            (
                lambda: 100 * 7.5 / 16,
                "That is the mean waste of one block. Only the last block of a sequence has any.",
            ),
        ),
        worked=lambda: (
            f"Empty: {' + '.join(map(str, _WASTE.tolist()))} = {_WASTE.sum()} of "
            f"{(_LENGTHS + _WASTE).sum()} places."
        ),
    ),
    Number(
        id="paging-big-blocks",
        chapter="15_paging",
        section="How large a block?",
        level=2,
        text=f"{SHAPE_8B} "
        "Blocks have 256 tokens, and lengths are spread evenly over the remainders. How many "
        "MB (10⁶ bytes) of bf16 cache does a sequence waste on average?",
        answer=lambda: (
            last_block_waste(np.arange(1, 257), 256).mean() * kv_cache_bytes(LLAMA_8B, 1) / 1e6
        ),
        unit="MB",
        slips=(
            (
                lambda: 255 * kv_cache_bytes(LLAMA_8B, 1) / 1e6,
                "That is the worst case. On average half of the last block is empty.",
            ),
            (
                lambda: 127.5 * kv_cache_bytes(LLAMA_8B, 1) / 2**20,
                "That is the number of MiB.",
            ),
            (
                lambda: 127.5 * kv_cache_bytes(LLAMA_8B, 1) / 2 / 1e6,
                "Keys and values: the factor 2 is missing.",
            ),
        ),
        worked=lambda: (
            f"127.5 tokens of {kv_cache_bytes(LLAMA_8B, 1):,} B. Blocks of 16 would waste 7.5 "
            "tokens."
        ),
    ),
    Number(
        id="paging-parallel-samples",
        chapter="15_paging",
        section="Four answers to one prompt",
        level=3,
        text="One prompt of 1,000 tokens gets 4 sampled answers of 200 tokens each. Blocks hold 16 "
        "tokens, the prompt's blocks are shared, and a shared block is copied when someone writes "
        "to it. Nobody but the 4 answers holds the prompt. How many blocks are in use once the "
        "last token of each answer is in the cache?",
        answer=_parallel_blocks,
        unit="blocks",
        rtol=0,
        slips=(
            (lambda: 4 * 75, "That is without sharing: four times 1,200 tokens."),
            (
                lambda: 63 + 4 * 13,
                "The prompt's last block is partly filled. When three answers have copied it, the "
                "last one writes to the original: no fifth copy stays.",
            ),
            (
                lambda: 62 + 50,
                "The last block of the prompt holds 8 tokens, so each answer needs (8 + 200) / 16 "
                "blocks of its own.",
            ),
        ),
        worked=lambda: (
            "62 full blocks are shared. Each answer has 8 tokens of the prompt and 200 of its own "
            f"in 13 blocks: 62 + 4 · 13 = {_parallel_blocks()}."
        ),
    ),
    Number(
        id="paging-prefix-hit",
        chapter="15_paging",
        section="The same beginning, at another time",
        level=2,
        text="A prefix cache with blocks of 16 tokens holds the blocks of a prompt. A second "
        "prompt of 2,100 tokens begins with the same 2,010 tokens and then differs. Only full "
        "blocks are found again. How many of its tokens must be computed?",
        answer=_computed_tokens,
        unit="tokens",
        rtol=0,
        slips=(
            (lambda: 90, "2,010 is no multiple of 16: the block in which they part is not shared."),
            (lambda: 2100, "The first 125 blocks have the same text from the very beginning."),
            (lambda: 84, "The block in which the prompts part cannot be reused."),
        ),
        worked="2,010 / 16 = 125.6: 125 full blocks, 2,000 tokens, are found. The other 100 are "
        "computed.",
    ),
    Number(
        id="paging-swap-or-recompute",
        chapter="15_paging",
        section="When no block is left",
        level=3,
        text=f"{SHAPE_8B} "
        "A preempted sequence of 8,192 tokens comes back. Its bf16 cache can be loaded from "
        f"the host at {_PCIE.bandwidth / 1e9:.0f} GB/s, or computed again in "
        f"{1e3 * _RECOMPUTE_S:.0f} ms, a prefill at the card's peak rate. How many times as long "
        "does computing take as loading?",
        answer=lambda: _RECOMPUTE_S / _LOAD_S,
        unit="",
        slips=(
            (lambda: _LOAD_S / _RECOMPUTE_S, "Upside down."),
            (lambda: 2 * _RECOMPUTE_S / _LOAD_S, "Keys and values: the factor 2 is missing."),
            (
                lambda: _RECOMPUTE_S / (4 * _LOAD_S),
                "You counted query heads. Only the 8 KV heads are stored.",
            ),
        ),
        worked=lambda: (
            f"{kv_cache_bytes(LLAMA_8B, 8192) / GB:.3f} GB take {1e3 * _LOAD_S:.0f} ms, so "
            f"computing takes {_RECOMPUTE_S / _LOAD_S:.1f} times as long. It needs no host memory "
            "and no transfer out, which is why engines often do it all the same."
        ),
    ),
    Choice(
        id="paging-same-tokens",
        chapter="15_paging",
        section="The same beginning, at another time",
        level=2,
        text="Two prompts contain the same 16 tokens at the same positions, filling one block, "
        "after beginnings that differ. Why can a prefix cache not share that block?",
        right="Keys and values depend on all tokens before",
        worked="From the second layer on, a token's hidden state has mixed in its past. Only the "
        "first layer's keys and values would be equal. So a block's hash covers the one before.",
        wrong=(
            (
                "RoPE gives the same tokens different positions",
                "The positions are the same here, and it is still not allowed.",
            ),
            (
                "Sharing a block in the middle would break the block table",
                "A table may name any block at any place. It would work, and be wrong.",
            ),
            (
                "The hash of 16 tokens is too likely to collide",
                "Hashes can be made as long as one likes. The content differs.",
            ),
        ),
    ),
    Choice(
        id="paging-zero-hits",
        chapter="15_paging",
        section="The same beginning, at another time",
        level=1,
        text="All requests share a system prompt of 1,500 tokens, yet the prefix cache has nearly "
        "no hits. The template begins: `Now: {date and time to the second}`, then the system "
        "prompt, then the question. What is the first thing to do?",
        right="Move the time behind the system prompt",
        worked="What differs in the first block makes every later block a different text. What all "
        "prompts share comes first, what changes comes last.",
        wrong=(
            (
                "Give the prefix cache more blocks",
                "It is not full of the same text. No text ever comes twice.",
            ),
            (
                "Make the blocks smaller",
                "Then the first, smaller block differs, and with it all the others.",
            ),
            (
                "Route by conversation to the same replica",
                "Good later. Within one conversation the first line still changes every time.",
            ),
        ),
    ),
    Explain(
        id="paging-preemptions",
        chapter="15_paging",
        section="When no block is left",
        level=2,
        text="An engine admits a request as soon as its prompt fits into free blocks. Under load "
        "you see many preemptions. Explain where they come from, what one costs, and two ways out "
        "with their price.",
        worked="Prompts fit at admission, but answers grow by a block every few tokens, and nobody "
        "knows how long they get. When no block is free, someone must give theirs back. With "
        "recompute, prompt and answer so far go through a prefill again; with swap they travel to "
        "the host and back. The reader sees a long gap, and the work is done twice. Ways out: "
        "lower the number of places, or keep a reserve of blocks for growth, at the price of "
        "longer queues and some idle memory. Reserve the maximum: no preemption, and most memory "
        "idle. More memory for blocks: quantised cache or weights, another card.",
        points=(
            "Answers grow after admission, and their length is unknown",
            "One costs a second prefill or a transfer, and a long gap for that reader",
            "Admit fewer or keep a reserve: longer queue, some memory idle",
            "Another way: reserve maxima, smaller cache entries, or more memory, with its price",
        ),
    ),
)

_MB = 10**6


def _tp_link_ms(n_reduces: int) -> float:
    """Return what the all-reduces of a decode step of 64 sequences on 8 cards take."""
    once = ring_all_reduce_s(64 * LLAMA_70B.d_model * 2, 8, H100.link_bandwidth or 0)
    return 1e3 * n_reduces * once


PARALLEL = (
    Number(
        id="parallel-ring-bytes",
        chapter="16_parallel",
        section="Adding up, round a ring",
        level=1,
        text="8 cards each hold an array of 1 MB (10⁶ bytes), and all need the sum. They use a "
        "ring all-reduce. How many MB does each card send?",
        answer=lambda: all_reduce_bytes(_MB, 8) / 8 / _MB,
        unit="MB",
        slips=(
            (
                lambda: all_reduce_bytes(_MB, 8) / _MB,
                "That is what all eight send together.",
            ),
            (
                lambda: 7,
                "Whole arrays to everyone would be 7 MB. A ring sends an eighth at a time.",
            ),
            (
                lambda: all_reduce_bytes(_MB, 8) / 16 / _MB,
                "That is half of it: first the sums travel round, then the results.",
            ),
        ),
        worked=lambda: (
            "In 7 rounds each sends an eighth to add up, in 7 more an eighth to spread: 14 / 8 = "
            f"{all_reduce_bytes(_MB, 8) / 8 / _MB:.2f} MB. Nearly 2 MB, however many cards."
        ),
    ),
    Number(
        id="parallel-tp-link-time",
        chapter="16_parallel",
        section="When does the network dominate?",
        level=2,
        text=f"A decode step of 64 sequences of Llama-3.1-70B ({LLAMA_70B.n_layers} layers, width "
        f"{LLAMA_70B.d_model:,}) on 8 cards with tensor parallelism. After attention and after the "
        "MLP of each layer a ring all-reduce adds up the activations, in bf16. A card sends at "
        f"{(H100.link_bandwidth or 0) / 1e9:.0f} GB/s. Latencies are left out, and nothing "
        "overlaps. How many milliseconds of a step does that take?",
        answer=lambda: _tp_link_ms(2 * LLAMA_70B.n_layers),
        unit="ms",
        slips=(
            (lambda: _tp_link_ms(LLAMA_70B.n_layers), "There are two in each layer."),
            (
                lambda: _tp_link_ms(2 * LLAMA_70B.n_layers) * 4 / 7,
                "A ring sends 2 · 7 / 8 of the array: once to add up and once to spread.",
            ),
            (lambda: _tp_link_ms(2), "That is one layer."),
        ),
        worked=lambda: (
            "160 times 2 · 7/8 · 64 · 8,192 · 2 B over the link: "
            f"{_tp_link_ms(2 * LLAMA_70B.n_layers):.2f} ms. At small batches the latency of each "
            "round, left out here, counts for more."
        ),
    ),
    Number(
        id="parallel-two-cards",
        chapter="16_parallel",
        section="A planner",
        level=2,
        text=f"{SHAPE_70B} "
        "In bf16 it is cut in two by tensor parallelism, on cards of 80 · 10⁹ bytes, of which "
        "90 % may hold weights and cache. How many thousand tokens of bf16 cache do the two cards "
        "hold together, at most?",
        answer=lambda: max_context(LLAMA_70B, 2 * 0.9 * H100.memory_bytes) / 1e3,
        unit="thousand tokens",
        rtol=0.05,
        slips=(
            (
                lambda: max_context(LLAMA_70B, 2 * H100.memory_bytes) / 1e3,
                "You used the whole memory, not 90 % of it.",
            ),
            (
                lambda: max_context(LLAMA_70B, 2 * 0.9 * 80 * GIB) / 1e3,
                "You took GiB for GB: a card has 80 · 10⁹ bytes.",
            ),
            (
                lambda: max_context(LLAMA_70B, 2 * 0.9 * H100.memory_bytes) * 2 / 1e3,
                "Keys and values: the factor 2 is missing.",
            ),
            (
                lambda: 2 * 0.9 * H100.memory_bytes / kv_cache_bytes(LLAMA_70B, 1) / 1e3,
                "The weights need their place, too: they take nearly all of it.",
            ),
        ),
        worked=lambda: (
            f"144 GB - {LLAMA_70B.n_params * 2 / GB:.1f} GB leave "
            f"{144 - LLAMA_70B.n_params * 2 / GB:.1f}"
            " GB, at 327,680 B a token. It fits, and serves one or two users: take four cards, or "
            "fewer bits."
        ),
    ),
    Number(
        id="parallel-bubble",
        chapter="16_parallel",
        section="A pipeline of layers",
        level=1,
        text="A pipeline of 4 equal stages gets 8 microbatches of equal size, and nothing else. "
        "From the start of the first to the end of the last one, which share of the stages' time "
        "is idle, in percent?",
        answer=lambda: 100 * pipeline_bubble(4, 8),
        unit="%",
        slips=(
            (
                lambda: 100 * 3 / 8,
                "That is idle time over busy time. The question asks for a share of all time.",
            ),
            (lambda: 100 * pipeline_bubble(4, 1), "That is with a single microbatch."),
            (
                lambda: 100 * 4 / 12,
                "The first stage starts at once: three steps are lost, not four.",
            ),
        ),
        worked=lambda: (
            "8 + 3 steps pass until the last microbatch is through, and each stage works in 8 of "
            f"them: 3 / 11 = {100 * pipeline_bubble(4, 8):.0f} %."
        ),
    ),
    Choice(
        id="parallel-one-kv-head",
        chapter="16_parallel",
        section="Heads that do not divide",
        level=2,
        text="A model with 8 query heads and one KV head (multi-query attention) runs on 4 cards "
        "with tensor parallelism by heads. Which share of the KV cache does each card hold?",
        right="All of it",
        worked=lambda: (
            "Every query head reads the one KV head, and each card has query heads. So each card "
            f"holds {100 * kv_share(LLAMA_8B.replace(n_kv_heads=1), 4):.0f} % of the cache. Cut it "
            "along the batch or the text instead."
        ),
        wrong=(
            ("A quarter", "That needs four KV heads. One cannot be cut by heads."),
            ("A half", "Nothing here divides by two. There is one KV head for all queries."),
            (
                "An eighth",
                "There are eight query heads, but the cache holds keys and values only.",
            ),
        ),
    ),
    Choice(
        id="parallel-pipeline-latency",
        chapter="16_parallel",
        section="A pipeline of layers",
        level=1,
        text="One user, one sequence, a model that fits on one card. It is cut into a pipeline of "
        "4 cards, a quarter of the layers each. What happens to the time per token?",
        right="About the same, or a little more",
        worked="The token passes all layers one after the other, wherever they are, and hands on "
        "its activations three times. A pipeline adds memory and throughput. Latency falls if the "
        "work within a layer is divided, as by tensor parallelism.",
        wrong=(
            (
                "It falls to a quarter, since four cards work on it",
                "Only one card works at a time: the next stage needs the result of this one.",
            ),
            (
                "It falls to a half",
                "Nothing of a single token's way is done at the same time.",
            ),
            (
                "It grows fourfold",
                "Each card has a quarter of the layers, so the sum is the same.",
            ),
        ),
    ),
    Explain(
        id="parallel-405b",
        chapter="16_parallel",
        section="A planner",
        level=3,
        text="You have two nodes of 8 H100 each, NVLink within and InfiniBand between them, and "
        "must serve Llama-3.1-405B in bf16 for chat. Choose a layout and defend it against two "
        "others.",
        worked="The weights are about 811 GB, more than the 640 GB of a node. Both have 1,280 GB, "
        "with room for cache. I cut layers eight ways within a node (tensor parallelism) and the "
        "stack in two between the nodes (pipeline). Each layer needs two all-reduces, which NVLink "
        "carries; between stages only activations of one width travel, once per pass, and "
        "InfiniBand is enough. Tensor parallelism over 16 would send every all-reduce over "
        "InfiniBand, hundreds in each step; and there are only 8 KV heads, so parts of the cache "
        "would exist twice. A pipeline of 16 would leave a token's latency as on one card, and "
        "needs 16 microbatches to be busy. Two copies are not possible in bf16; in fp8 each node "
        "could hold one, with no traffic between them, which I would try first if quality allows. "
        "I check the time per token with a model, and then measure.",
        points=(
            "Weights of about 810 GB need more than one node in bf16",
            "Tensor parallel 8 within the node, since all-reduces in each layer need NVLink",
            "Pipeline of 2 between nodes: little traffic, once per pass",
            "Against tensor 16: all-reduces over the slow link, and 8 KV heads do not divide by 16",
            "Against a deep pipeline: latency, bubbles. Or fp8: a copy per node",
        ),
    ),
)


def _adapter_tokens(rank: int) -> float:
    """Return how many tokens of cache take as much as an adapter of all attention matrices."""
    d, kv = LLAMA_8B.d_model, LLAMA_8B.n_kv_heads * LLAMA_8B.head_dim
    shapes = ((d, d), (d, kv), (d, kv), (d, d))
    n_bytes = 2 * LLAMA_8B.n_layers * sum(rank * (n_in + n_out) for n_in, n_out in shapes)
    return n_bytes / kv_cache_bytes(LLAMA_8B, 1)


def _budget_steps() -> int:
    """Return in how many steps of 512 tokens a prompt of 2,000 is computed beside 48 decodes."""
    chunks: list[int] = []
    requests = [Request(0.0, 1, 100) for _ in range(48)] + [Request(10.0, 2000, 1)]

    def note(record: StepRecord) -> None:
        chunks.extend(n_new for request, n_new, _ in record.prefills if request == 48)

    simulate(requests, "chunked", lambda *_: 1.0, max_batch=64, token_budget=512, on_step=note)
    return len(chunks)


ENGINE = (
    Number(
        id="engine-adapter",
        chapter="17_engine",
        section="One switch after the other",
        level=3,
        text=f"{SHAPE_8B} "
        "A LoRA adapter of rank 16 changes the four attention matrices of every layer: q and "
        "o are 4,096 × 4,096, k and v are 4,096 × 1,024. It is kept in bf16 as its two factors. "
        "How many tokens of bf16 KV cache take as much memory?",
        answer=lambda: _adapter_tokens(16),
        unit="tokens",
        slips=(
            (lambda: 2 * _adapter_tokens(16), "Keys and values: the factor 2 is missing."),
            (
                lambda: LLAMA_8B.n_params * 2 / kv_cache_bytes(LLAMA_8B, 1),
                "That is a whole copy of the weights.",
            ),
            (
                lambda: _adapter_tokens(16) / LLAMA_8B.n_layers,
                "Every layer has factors of its own.",
            ),
            (
                lambda: 2 * 32 * 4 * 4096 * 16 / kv_cache_bytes(LLAMA_8B, 1),
                "A pair has two factors, d_in × 16 and 16 × d_out.",
            ),
        ),
        worked=lambda: (
            "A layer: 16 · (8,192 + 5,120 + 5,120 + 8,192) numbers. 32 layers in bf16 are 27.3 MB, "
            f"or {_adapter_tokens(16):.0f} tokens. A hundred fine-tunings fit beside one base."
        ),
    ),
    Number(
        id="engine-budget-steps",
        chapter="17_engine",
        section="One switch after the other",
        level=1,
        text="An engine computes at most 512 tokens in a step. Sequences that decode come first, "
        "one token each, and 48 of them are running all the while. What is left of the step goes "
        "to the prompt that is first in line. It has 2,000 tokens. In how many steps is it "
        "computed?",
        answer=_budget_steps,
        unit="steps",
        rtol=0,
        slips=(
            (
                lambda: math.ceil(2000 / 512),
                "Each step also carries 48 tokens of those who decode. 464 are left, and what "
                "remains after four of them needs a step, too.",
            ),
            (lambda: 1, "A prompt larger than the budget is cut into chunks."),
        ),
        worked=lambda: (
            f"512 - 48 = 464 tokens a step, and 2,000 / 464 = {2000 / 464:.1f}, so "
            f"{_budget_steps()} steps."
        ),
    ),
    Choice(
        id="engine-client-gone",
        chapter="17_engine",
        section="Pitfalls",
        level=1,
        text="A user closes the browser in the middle of a long answer. What must the server do, "
        "and what happens if it does not?",
        right="Abort the request, or it keeps its place and blocks",
        worked="The engine does not see the connection. A server that only stops sending leaves a "
        "request that runs to its limit, for nobody, and others wait for its memory.",
        wrong=(
            (
                "Nothing; the engine stops when nobody reads its tokens",
                "Tokens go into a queue of the server. The engine does not know who reads it.",
            ),
            (
                "Nothing; the answer should be kept for when the user returns",
                "That may be a feature of an application, and then it must be stored. It costs a "
                "place all the same.",
            ),
            (
                "Close the connection; its blocks are then freed by the prefix cache",
                "The prefix cache frees blocks that no request holds. This request still runs.",
            ),
        ),
    ),
    Choice(
        id="engine-first-switch",
        chapter="17_engine",
        section="One switch after the other",
        level=2,
        text="A chat service: every prompt begins with the same 3,000 tokens of instructions, "
        "followed by 100 to 200 of the user's own. Answers are short. Users complain about the "
        "first token; the rhythm after it is fine, and the queue is nearly empty. Which switch do "
        "you try first?",
        right="Prefix caching",
        worked="Without it each request computes 3,100 tokens or more before its first token; with "
        "it, some hundred. Nothing else here removes that work.",
        wrong=(
            (
                "A larger batch",
                "The queue is nearly empty, so nobody waits for a place.",
            ),
            (
                "Chunked prefill",
                "It protects the rhythm of others. The prompt's own first token comes later.",
            ),
            (
                "Speculative decoding",
                "It makes decode sooner, and the rhythm is fine already.",
            ),
        ),
    ),
    Choice(
        id="engine-knee",
        chapter="17_engine",
        section="Under load: where is the knee?",
        level=2,
        text="A load test at rising rates shows: up to 20 requests per second the p95 TTFT is "
        "below 0.4 s, at 24 it is 2.5 s, at 26 the line grows without end. The promise is a p95 "
        "TTFT of 1 s. Traffic comes in bursts. Which rate do you plan for one replica?",
        right="Some way below 20 per second, and the line is limited",
        worked="The knee lies between 20 and 24, and the test was smooth where traffic is not. A "
        "burst above the knee leaves a line that takes long to drain. So keep room, and refuse "
        "early what would miss the promise.",
        wrong=(
            (
                "21 per second, where the p95 by interpolation is 1 s",
                "There a small burst breaks the promise, since the curve is steep.",
            ),
            (
                "25 per second, just below the rate at which the line grows without end",
                "That is capacity, not what keeps the promise: at 24 the p95 is 2.5 s.",
            ),
            (
                "26 per second, and the prefix cache catches the rest",
                "The line grows without end there. The test had what caches it had.",
            ),
        ),
    ),
    Explain(
        id="engine-twice-as-fast",
        chapter="17_engine",
        section="Where a millisecond goes",
        level=3,
        text="A vendor says: \u201cour engine is twice as fast.\u201d Which questions do you ask "
        "before you run anything, and which test do you run?",
        worked="Twice of what: tokens per second in total, per user, first token, and at which "
        "percentile? At which batch, lengths of prompts and answers, and load? With the same "
        "model, number format and card, the same exactness, and against which version and flags of "
        "the other engine? How much was a prefix cache that hits because the test repeats its "
        "prompts, or speculation on text that is easy to guess? Then where it comes from: which "
        "part of a step got smaller, and how large is that part in my service? The test: my own "
        "trace, with its lengths, arrivals and shared beginnings, on both, at several rates up to "
        "the knee; goodput under my promises; and answers compared for quality.",
        points=(
            "Which metric: throughput, per-user rate or first token, and at which percentile",
            "At which batch, lengths and load",
            "Same model, format, hardware and quality; which baseline and flags",
            "Which part of the step shrank: prefix hits or speculation may not carry over",
            "Test with one's own trace at several rates, judged by goodput",
        ),
    ),
)

QUESTIONS: tuple[InterviewQuestion, ...] = (*BATCHING, *PAGING, *PARALLEL, *ENGINE)
