"""Questions about part I: what inference costs."""

import math

import numpy as np

from firsttoken.appendix.interview.question import Choice, Explain, InterviewQuestion, Number
from firsttoken.appendix.interview.questions.facts import (
    CARD,
    DEEPSEEK_V3,
    H100,
    LLAMA_8B,
    LLAMA_70B,
    SHAPE_8B,
    SHAPE_70B,
)
from firsttoken.architectures import ARCHITECTURES, Architecture
from firsttoken.batching import Request, StepRecord, simulate
from firsttoken.hardware import ACCELERATORS
from firsttoken.kv_cache import kv_cache_bytes, max_batch
from firsttoken.metrics import (
    RequestTrace,
    latency_budget,
    littles_law,
    percentile,
    wait_md1,
    wait_mm1,
)
from firsttoken.roofline import attention_cost
from firsttoken.throughput import cost_per_million_tokens, decode_step
from firsttoken.units import BYTES, GB, GIB

MHA_70B = LLAMA_70B.replace(n_kv_heads=LLAMA_70B.n_heads)
MHA_8B = LLAMA_8B.replace(n_kv_heads=LLAMA_8B.n_heads)
WEIGHTS_8B = LLAMA_8B.n_params * BYTES["bf16"]

START = (
    Number(
        id="start-training-tokens",
        chapter="00_start",
        section="Training against running",
        level=1,
        text="A dense model is trained once on 15 trillion tokens. After how many tokens of "
        "service, in trillions, has running it done as many FLOPs as training it? Count 6 FLOPs "
        "per parameter and token in training and 2 in inference, and leave attention out.",
        answer=lambda: 15 * 6 / 2,
        unit="trillion tokens",
        slips=(
            (
                lambda: 15,
                "That counts a trained token like a served one. Training also goes backward, which "
                "costs twice the forward pass.",
            ),
            (
                lambda: 15 / 3,
                "Upside down: a served token costs a third, so it takes more of them.",
            ),
            (
                lambda: 15 * 2,
                "The backward pass costs twice the forward pass, on top of it: three.",
            ),
        ),
        worked="A trained token costs three forward passes, one forward and the equal of two "
        "backward. So it takes three served tokens for each trained one, whatever the size of the "
        "model.",
    ),
    Number(
        id="start-flops-v3",
        chapter="00_start",
        section="What a token costs",
        level=1,
        text=f"DeepSeek-V3 has {DEEPSEEK_V3.n_params / 1e9:.0f} billion parameters. One token is "
        f"multiplied with {DEEPSEEK_V3.n_active_params / 1e9:.1f} billion of them. How many GFLOPs "
        "does the forward pass of one token take, attention to other tokens left out?",
        answer=lambda: 2 * DEEPSEEK_V3.n_matmul_params / 1e9,
        unit="GFLOP",
        slips=(
            (
                lambda: 2 * DEEPSEEK_V3.n_params / 1e9,
                "That is as if each token visited all experts. It is sent to a few of them.",
            ),
            (
                lambda: DEEPSEEK_V3.n_active_params / 1e9,
                "A weight is multiplied and the product is added: two FLOPs, not one.",
            ),
            (
                lambda: 6 * DEEPSEEK_V3.n_active_params / 1e9,
                "Six FLOPs per parameter are training. Inference has no backward pass.",
            ),
        ),
        worked="Two FLOPs, a multiplication and an addition, for each parameter that the token "
        "meets. Parameters of experts it does not visit cost memory, not FLOPs.",
    ),
    Choice(
        id="start-patient-load",
        chapter="00_start",
        section="What inference is",
        level=1,
        text="Which of these loads lets you give up time to first token for tokens per second?",
        right="Labelling two million documents by tomorrow morning",
        worked="Nobody waits for a single document. Only the time of the whole job counts, so the "
        "batch may be as large as memory allows.",
        wrong=(
            (
                "Completing code in an editor",
                "The suggestion is worthless once the next key is hit.",
            ),
            ("A voice assistant", "Silence before the first word is what its user notices most."),
            (
                "An agent that calls the model 50 times in a row for one task",
                "Each call waits for the one before, so its user pays the first token 50 times.",
            ),
        ),
    ),
    Choice(
        id="start-output-dearer",
        chapter="00_start",
        section="What a token costs",
        level=2,
        text="Providers charge several times as much for an output token as for an input token. "
        "Which technical reason carries most of that?",
        right="Each output token needs a pass that reads the weights again",
        worked="A prompt goes through in one pass, so its tokens share one reading of the weights "
        "and keep the arithmetic busy. An output token shares its pass only with the other "
        "requests of the batch. Its FLOPs are nearly the same; the hardware's time is not.",
        wrong=(
            (
                "Only output tokens are stored in the KV cache",
                "Input tokens are stored, too. Decode reads them at each step.",
            ),
            (
                "An output token takes several times the FLOPs of an input token",
                "Both pass through the same matrices once, two FLOPs per weight.",
            ),
            (
                "Choosing one token out of a large vocabulary takes most of the time of a step",
                "It is a small part of a step. The matrices of all layers are read before it.",
            ),
        ),
    ),
    Explain(
        id="start-small-or-large",
        chapter="00_start",
        section="Training against running",
        level=3,
        text="A team can train a model of 70 billion parameters on 2 trillion tokens, or one of "
        "8 billion on more tokens until it is as good. Which quantity decides, and when is the "
        "small one right?",
        worked="Training costs about 6 P D FLOPs once. Service costs about 2 P for each token read "
        "or written, for as long as the model is in use. The small model may cost more to train, "
        "because it needs many more tokens for the same quality. It saves 2 · 62 billion FLOPs for "
        "each token served. It has a ninth of the weights to read, so it is faster, and fits one "
        "card. Divide the extra training by the saving per token: beyond that many served tokens "
        "the small one is right. If it cannot reach the quality at all, the question is void.",
        points=(
            "Training is paid once, about 6 FLOPs per parameter and token",
            "Service is paid per token, about 2 FLOPs per parameter, as long as the model lives",
            "The number of tokens to be served decides: extra training over the saving per token",
            "Beside FLOPs, the small model reads fewer bytes: lower latency, fewer cards",
        ),
    ),
)


def _n_passes(n_prompt: int, n_output: int) -> int:
    """Return how many passes a server makes for one request alone."""
    steps: list[StepRecord] = []
    request = [Request(0.0, n_prompt, n_output)]
    simulate(request, "continuous", lambda *_: 1.0, max_batch=1, on_step=steps.append)
    return len(steps)


def _bits_per_byte(nats_per_token: float, bytes_per_token: float) -> str:
    return f"{nats_per_token / math.log(2) / bytes_per_token:.2f}"


GENERATE = (
    Number(
        id="generate-passes",
        chapter="01_generate",
        section="The loop",
        level=1,
        text="A prompt of 700 tokens arrives at an idle server, and 12 tokens are generated, one "
        "by one. The prompt is not cut into chunks, and nothing is guessed. How many forward "
        "passes does the model make for this request?",
        answer=lambda: _n_passes(700, 12),
        unit="passes",
        rtol=0,
        slips=(
            (
                lambda: _n_passes(700, 12) + 1,
                "The pass over the prompt gives the first token already: its last row of logits "
                "is what that token is drawn from.",
            ),
            (
                lambda: _n_passes(700, 12) - 1,
                "These are the decode steps. The pass over the prompt counts, too.",
            ),
            (lambda: 700 + 11, "All tokens of the prompt go through one pass together."),
        ),
        worked="One pass over the prompt gives token 1, and one pass each gives tokens 2 to 12.",
    ),
    Choice(
        id="generate-bits",
        chapter="01_generate",
        section="How good are its guesses?",
        level=2,
        text="On the same text, model A has a loss of 2.0 nats per token, at 4.0 bytes of text per "
        "token. Model B has 1.6 nats per token, at 3.0 bytes per token. Which one predicts the "
        "text better?",
        right="A, because its loss per byte of text is lower",
        worked=lambda: (
            f"A: {_bits_per_byte(2.0, 4.0)} bits per byte. B: {_bits_per_byte(1.6, 3.0)}. The loss "
            "of the whole text is what counts, and B cuts that text into more tokens."
        ),
        wrong=(
            (
                "B, because its perplexity is lower",
                "Perplexity is per token, and the tokens differ. A model with one token per letter "
                "would win every such contest.",
            ),
            (
                "B, because its loss per token is lower",
                "B needs four tokens where A needs three. Multiply loss and number of tokens.",
            ),
            (
                "It cannot be said: the vocabularies differ",
                "It can. Both give a probability to the same bytes; divide by their number.",
            ),
        ),
    ),
    Choice(
        id="generate-bug-whole-text",
        chapter="01_generate",
        section="The loop",
        level=2,
        text="The model keeps all keys and values of the tokens it has seen in `cache`. The first "
        "new token is right, the rest is nonsense. What is wrong?",
        code="token = argmax(model(prompt, cache)[-1])\n"
        "out = [token]\n"
        "while token != END and len(out) < max_tokens:\n"
        "    logits = model(prompt + out, cache)\n"
        "    token = argmax(logits[-1])\n"
        "    out.append(token)",
        right="The cache gets tokens that it holds already",
        worked="With a cache only the newest token goes in: `model([token], cache)`. Here the "
        "prompt is appended to itself at wrong positions, and attention sees both copies. The "
        "first token comes before that happens.",
        wrong=(
            (
                "It reads the wrong row of the logits",
                "The last row is right: it is the guess for what follows the last token.",
            ),
            (
                "It stops before END is written",
                "It stops after END has been appended. And the text would be fine up to there.",
            ),
            (
                "It takes the likeliest token instead of drawing one at random",
                "Greedy choice may bore, but it does not make nonsense after one token.",
            ),
        ),
    ),
    Choice(
        id="generate-trailing-space",
        chapter="01_generate",
        section="Pitfalls",
        level=2,
        text="After a change of the prompt's template, completions get worse. The only difference: "
        "the prompt now ends in a space. The vocabulary keeps the space in front of a word in the "
        "word's own token. Why does it matter?",
        right="The likely tokens begin with a space, which is spent",
        worked="In training, the text went on with tokens such as ` house`. After a lone space the "
        "model must say `house` without it, which it has hardly ever seen there.",
        wrong=(
            (
                "One more token makes the prompt longer than the model's window",
                "That would concern prompts at the very limit. The others got worse, too.",
            ),
            (
                "The space is cut off when the prompt is cleaned",
                "Then nothing would have changed at all.",
            ),
            (
                "Trailing spaces are mapped to the end-of-text token",
                "They have tokens of their own. End of text is a special token that no text gives.",
            ),
        ),
    ),
    Explain(
        id="generate-which-logits",
        chapter="01_generate",
        section="The loop",
        level=2,
        text="A pass over many tokens can give a row of logits at every position. Which rows does "
        "plain generation need? Name two uses that need more, and what it saves to leave rows out.",
        worked="Plain generation needs the last row: the guess for the first new token. Scoring a "
        "text, as for a perplexity or for the log-probabilities of a prompt, needs all rows. "
        "Checking drafted tokens needs one for each of them and one more. A row that is left out "
        "saves the product with the output matrix, width times vocabulary, and the memory for one "
        "number per word of the vocabulary, which for a long prompt is gigabytes.",
        points=(
            "Generation needs the row of the last position only",
            "Scoring a text, or log-probabilities of the prompt, need all rows",
            "Speculative decoding needs a row for each drafted token, and one more",
            "Leaving rows out saves the output matrix's FLOPs, or the memory of the logits",
        ),
    ),
)

# Two requests: one gap of 100 ms, and 199 gaps of 20 ms.
_SHORT = RequestTrace(0.0, (0.5, 0.6))
_LONG = RequestTrace(0.0, tuple(0.5 + 0.02 * i for i in range(200)))


def _mean_gap_ms() -> float:
    return float(1e3 * np.concatenate([_SHORT.itl, _LONG.itl]).mean())


_QUEUE = {"rate": 1.8, "service_s": 0.5}
# Ten replicas: nine are fast, the tenth is slow.
_TENTH = [0.02 * (i + 1) for i in range(100)]

METRICS = (
    Number(
        id="metrics-e2e",
        chapter="02_metrics",
        section="Four latencies",
        level=1,
        text="A request has a TTFT of 400 ms and a TPOT of 50 ms, and 9 tokens are written. How "
        "many milliseconds after its arrival is the last one there?",
        answer=lambda: 1e3 * latency_budget(n_output=9, prefill_s=0.4, decode_s=0.05).e2e,
        unit="ms",
        slips=(
            (
                lambda: 1e3 * (0.4 + 9 * 0.05),
                "The TTFT contains the first token already: eight gaps follow it, not nine.",
            ),
            (
                lambda: 9 * 50,
                "Before the first token lies the TTFT, not a gap of the usual length.",
            ),
        ),
        worked="400 ms until the first token, and then a gap for each of the other eight.",
    ),
    Number(
        id="metrics-little",
        chapter="02_metrics",
        section="Why one waits",
        level=1,
        text="A service takes in and completes 12 requests per second. A request spends 8 s in it "
        "on average, from arrival to last token. How many requests are in it at a time, on "
        "average?",
        answer=lambda: littles_law(12, 8),
        unit="requests",
        slips=(
            (lambda: 12 / 8, "Rate times time, not rate over time."),
            (lambda: 8 / 12, "Rate times time, not time over rate."),
        ),
        worked="Little's law: the number in a system is the arrival rate times the mean time in "
        "it, for any distribution and any order of service.",
    ),
    Number(
        id="metrics-queue",
        chapter="02_metrics",
        section="Why one waits",
        level=2,
        text="A server works on one request at a time, in order of arrival. Each takes exactly "
        "0.5 s, and 1.8 arrive per second, at random (Poisson). How many seconds does a request "
        "wait on average before its own work begins?",
        answer=lambda: wait_md1(**_QUEUE),
        unit="s",
        slips=(
            (
                lambda: wait_mm1(**_QUEUE),
                "That is for service times that vary like an exponential. Equal times halve the "
                "wait.",
            ),
            (
                lambda: wait_md1(**_QUEUE) + 0.5,
                "That is the time until the work is done. The question asks for the wait before.",
            ),
            (lambda: 0.0, "At 90 % utilisation arrivals still come in clumps, and clumps wait."),
        ),
        worked=lambda: (
            "The utilisation is ρ = 1.8 · 0.5 = 0.9. Equal service times s wait ρ s / (2 (1 - ρ)) "
            f"= {wait_md1(**_QUEUE):.2f} s, several times the work itself."
        ),
    ),
    Number(
        id="metrics-pooled-itl",
        chapter="02_metrics",
        section="Four latencies",
        level=2,
        text="A log holds two requests. One wrote 2 tokens with a gap of 100 ms, the other "
        "200 tokens with gaps of 20 ms. What is the mean over all gaps, in milliseconds?",
        answer=_mean_gap_ms,
        unit="ms",
        rtol=0.01,
        slips=(
            (
                lambda: (2 * 100 + 200 * 20) / 202,
                "That weighs by tokens. A request of n tokens has n - 1 gaps.",
            ),
            (
                lambda: 1e3 * ((_SHORT.tpot or 0) + (_LONG.tpot or 0)) / 2,
                "That is the mean TPOT over requests, in which a request of one gap counts as much "
                "as one of 199.",
            ),
        ),
        worked=lambda: (
            f"One gap of 100 ms and 199 of 20 ms: {_mean_gap_ms():.1f} "
            "ms. The mean of the two TPOTs is 60 ms. Both are means; say which population."
        ),
    ),
    Choice(
        id="metrics-p99-of-p99s",
        chapter="02_metrics",
        section="Percentiles",
        level=2,
        text="Ten replicas get the same number of requests. On nine of them no request ever waits "
        "longer than 0.1 s. On the tenth, waits are spread evenly from 0 to 2 s. What is the p99 "
        "of the wait over all requests?",
        right="About 1.8 s",
        worked=lambda: (
            "The slowest hundredth of all requests is the slowest tenth of the tenth replica. So "
            f"it is that one's p90, {percentile(_TENTH, 90):.1f} s."
        ),
        wrong=(
            (
                "About 0.1 s",
                "One request in ten goes to the slow replica, and nearly all of those wait longer.",
            ),
            ("About 0.3 s", "That is the mean of the ten p99s, which is the p99 of nothing."),
            (
                "About 2.0 s",
                "That is the slow replica's own p99. Of all requests, a tenth of it is one "
                "percent.",
            ),
        ),
    ),
    Explain(
        id="metrics-ttft-tenfold",
        chapter="02_metrics",
        section="Why one waits",
        level=3,
        text="When a service goes from 70 % to 90 % of its capacity, its p99 TTFT grows tenfold. "
        "The TPOT hardly moves. What do you look at first, and why? What would you do?",
        worked="First the time in the queue, before any prefill: how many requests wait, and how "
        "long. TTFT contains the queue and TPOT does not, so a kernel that became slower would "
        "show in both. With one place the mean wait grows like ρ/(1 - ρ), nearly fourfold from "
        "70 to 90 %. With dozens of places hardly anybody waits at 70 % and many do at 90 %, so "
        "tenfold is no surprise. Bursts, and long prompts, which vary the service time, make it "
        "worse. Then what blocks admission: the places of the batch, or "
        "blocks of cache, and whether requests are preempted. To do: plan below the knee, add "
        "replicas, limit the line and refuse early, keep long prompts from blocking short ones. A "
        "faster kernel alone moves the knee a little.",
        points=(
            "The wait before prefill: the queue is in TTFT and not in TPOT",
            "Waiting grows like 1/(1 - ρ), out of proportion near capacity",
            "Variance counts: bursts of arrivals, long prompts ahead in the line",
            "What blocks admission: places in the batch or memory for the cache, preemptions",
            "A remedy that lowers the load per replica or limits the line",
        ),
    ),
)

_H200 = ACCELERATORS["H200-SXM"]
_MIXTRAL = ARCHITECTURES["Mixtral-8x7B"]


def _experts_touched(n_tokens: int) -> float:
    """Return how many of Mixtral's experts a pass reads in a layer, on average."""
    none, one = _MIXTRAL.n_touched_params(0), _MIXTRAL.n_touched_params(1)
    per_expert = (one - none) / _MIXTRAL.n_active_experts
    return (_MIXTRAL.n_touched_params(n_tokens) - none) / per_expert


def _equal_flops_context(arch: Architecture) -> float:
    """Return the context at which one token's attention does the FLOPs of the layers' matrices."""
    matrices = arch.params_by_component["attention"] + arch.params_by_component["mlp"]
    per_attended = attention_cost(1, 1, 1, arch.n_heads, arch.n_kv_heads, arch.head_dim).flops
    return 2 * matrices / (arch.n_layers * per_attended)


ROOFLINE = (
    Number(
        id="roofline-ridge",
        chapter="03_roofline",
        section="Ridge points of real cards",
        level=1,
        text="An H200 computes 989 TFLOP/s in dense bf16 and reads 4.8 TB/s. At how many FLOPs per "
        "byte do computing and reading take equally long?",
        answer=lambda: _H200.ridge_point(),
        unit="FLOP/B",
        slips=(
            (
                lambda: 2 * _H200.ridge_point(),
                "That is with the rate for matrices half of whose entries are zero, or for fp8.",
            ),
            (
                lambda: H100.ridge_point(),
                "That is an H100's. The H200 computes as fast and reads faster.",
            ),
        ),
        worked=lambda: f"989 · 10¹² / (4.8 · 10¹²) = {_H200.ridge_point():.0f}, the ridge point.",
    ),
    Number(
        id="roofline-gqa-intensity",
        chapter="03_roofline",
        section="Attention",
        level=2,
        text="A decode step of 32 sequences at 8,192 attended tokens each, in bf16. There are 64 "
        "query heads and 8 KV heads. The sequences share nothing, and a multiply-add is two FLOPs. "
        "How many FLOPs per byte does the attention itself do, without the projections?",
        answer=lambda: attention_cost(32, 1, 8192, 64, 8, 128).intensity,
        unit="FLOP/B",
        slips=(
            (
                lambda: attention_cost(1, 1, 8192, 64, 64, 128).intensity,
                "That is multi-head attention. Here eight query heads use each key that is read.",
            ),
            (
                lambda: 32 * attention_cost(1, 1, 8192, 64, 8, 128).intensity,
                "The batch multiplies FLOPs and bytes alike: each sequence has a cache of its own.",
            ),
            (
                lambda: attention_cost(1, 1, 8192, 64, 1, 128).intensity,
                "That is one KV head for all. Here there are eight, each read for eight queries.",
            ),
        ),
        worked="Each key and value is read once and used by the query heads of its group, 64 / 8 = "
        "8. With two FLOPs and two bytes per number that is about 8, whatever the batch.",
    ),
    Choice(
        id="roofline-batch-moves",
        chapter="03_roofline",
        section="Two levers",
        level=1,
        text="The batch of a decode step grows from 8 to 64 at the same context per sequence. "
        "Nothing is shared between sequences. What happens to the FLOPs per byte of the linear "
        "layers, and to those of attention?",
        right="Linear layers: nearly eightfold. Attention: as before.",
        worked="All sequences share the weights, so one reading serves eight times the tokens. "
        "Keys and values are private: eight times the FLOPs, and eight times the bytes.",
        wrong=(
            (
                "Both: nearly eightfold.",
                "Attention reads eight times the cache for eight times the FLOPs.",
            ),
            (
                "Linear layers: as before. Attention: nearly eightfold.",
                "The other way round: weights are shared, caches are not.",
            ),
            (
                "Both: as before.",
                "The weights are read once for the whole batch, however large it is.",
            ),
        ),
    ),
    Number(
        id="roofline-experts",
        chapter="03_roofline",
        section="Mixture of experts",
        level=2,
        text="A layer has 8 experts, and each token goes to 2 different ones, drawn uniformly and "
        "independently of other tokens. How many experts does a decode step of 8 sequences read in "
        "this layer, on average?",
        answer=lambda: _experts_touched(8),
        unit="experts",
        rtol=0.01,
        slips=(
            (
                lambda: 8 * (1 - (7 / 8) ** 16),
                "A token's two experts are different: it misses one with probability 6/8.",
            ),
            (lambda: 8, "All of them, nearly: one expert is missed by all 8 tokens now and then."),
            (lambda: 2, "That is for a single token. The others choose, too."),
            (lambda: 16, "There are only 8: tokens that agree read an expert once."),
        ),
        worked=lambda: (
            "A token misses an expert with probability 3/4, all eight tokens with (3/4)⁸. So "
            f"8 · (1 - (3/4)⁸) = {_experts_touched(8):.1f}. A small batch already reads nearly "
            "all experts. The saving in FLOPs stays."
        ),
    ),
    Number(
        id="roofline-attention-overtakes",
        chapter="03_roofline",
        section="Where attention overtakes the linear layers",
        level=3,
        text="A layer of Llama-3.1-8B is 4,096 wide, has an MLP of three matrices 14,336 wide, 32 "
        "query heads and 8 KV heads of 128 numbers. One token is decoded. At how many attended "
        "tokens does attention (its two products, all heads) do as many FLOPs as all the layer's "
        "weight matrices?",
        answer=lambda: _equal_flops_context(LLAMA_8B),
        unit="tokens",
        slips=(
            (
                lambda: 2 * _equal_flops_context(LLAMA_8B),
                "Twice too much. There are two products, scores and mixing: 4 FLOPs per attended "
                "token, head and number. Or you took a whole prompt, whose mean context is half.",
            ),
            (
                lambda: _equal_flops_context(MHA_8B),
                "You gave keys and values as many heads as queries: those projections are smaller.",
            ),
            (
                lambda: 4 * _equal_flops_context(LLAMA_8B),
                "All 32 query heads compute scores, though groups of four share keys.",
            ),
        ),
        worked=lambda: (
            "Matrices: 2 · (2 · 4096² + 2 · 4096 · 1024 + 3 · 4096 · 14336) FLOPs. Attention: 4 · "
            f"4096 for each attended token. The quotient is {_equal_flops_context(LLAMA_8B):,.0f}. "
            "Up to several thousand tokens attention is a small part of the FLOPs."
        ),
    ),
    Explain(
        id="roofline-more-flops",
        chapter="03_roofline",
        section="Two clocks",
        level=2,
        text="A dashboard shows that your chat model, alone on its card and with one user at a "
        "time, uses 0.3 % of the card's FLOP/s. Your manager wants a card with twice the FLOP/s. "
        "What do you answer?",
        worked="One sequence does about one FLOP per byte of bf16 weights, and the card needs some "
        "hundreds to be busy. So the arithmetic waits for memory, and twice the FLOP/s would wait "
        "just as long. Time per token is bytes over bandwidth. Sooner tokens come from fewer bytes "
        "(quantised weights, a smaller model), from more bandwidth, or from several tokens per "
        "reading, as in speculative decoding. More users at once would use the idle arithmetic and "
        "make tokens cheaper, but not one user's sooner. What more FLOP/s would hasten is the "
        "first token after a long prompt.",
        points=(
            "Decode of one sequence is memory-bound: about 1 FLOP per byte, the ridge is at "
            "hundreds",
            "More FLOP/s do not help, since they would wait for memory as well",
            "Bandwidth or fewer bytes per token help: faster memory, quantisation, smaller model",
            "Batching, or several tokens per pass, uses the idle arithmetic",
        ),
    ),
)


CACHE = (
    Number(
        id="cache-70b-token",
        chapter="04_kv_cache",
        section="What is kept, and how many bytes it is",
        level=1,
        text=f"{SHAPE_70B} How many bytes of keys and values does one token take in bf16?",
        answer=lambda: kv_cache_bytes(LLAMA_70B, 1),
        unit="B",
        rtol=0.01,
        slips=(
            (lambda: kv_cache_bytes(LLAMA_70B, 1) / 2, "Keys and values: the factor 2 is missing."),
            (
                lambda: kv_cache_bytes(MHA_70B, 1),
                "You counted query heads. Only the KV heads are stored.",
            ),
            (
                lambda: kv_cache_bytes(LLAMA_70B, 1) / LLAMA_70B.n_layers,
                "That is one layer. Every layer keeps its own keys and values.",
            ),
            (
                lambda: kv_cache_bytes(LLAMA_70B, 1, dtype="fp32"),
                "That is in fp32. A bf16 number takes two bytes.",
            ),
        ),
        worked=lambda: (
            "2 (key and value) · 80 layers · 8 KV heads · 128 numbers · 2 bytes = "
            f"{kv_cache_bytes(LLAMA_70B, 1):,} B, which is 320 KiB."
        ),
    ),
    Number(
        id="cache-70b-batch",
        chapter="04_kv_cache",
        section="What is kept, and how many bytes it is",
        level=1,
        text=f"{SHAPE_70B} "
        "How many GB does the KV cache of 64 sequences of 8,192 tokens take in bf16, with "
        "nothing shared? 1 GB is 10⁹ bytes.",
        answer=lambda: kv_cache_bytes(LLAMA_70B, 8192, batch=64) / GB,
        unit="GB",
        slips=(
            (
                lambda: kv_cache_bytes(LLAMA_70B, 8192, batch=64) / GIB,
                "That is the number of GiB. In GB, 10⁹ bytes each, it is 7 % more.",
            ),
            (
                lambda: kv_cache_bytes(LLAMA_70B, 8192, batch=64) / 2 / GB,
                "Keys and values: the factor 2 is missing.",
            ),
            (
                lambda: kv_cache_bytes(MHA_70B, 8192, batch=64) / GB,
                "You counted query heads. Only the KV heads are stored.",
            ),
            (
                lambda: kv_cache_bytes(LLAMA_70B, 8192) / GB,
                "That is one sequence. Each of the 64 has its own.",
            ),
        ),
        worked=lambda: (
            f"{kv_cache_bytes(LLAMA_70B, 1):,} B for a token, times 8,192 · 64 tokens: "
            f"{kv_cache_bytes(LLAMA_70B, 8192, batch=64) / GB:.1f} GB, or 160 GiB. More than the "
            f"weights, {LLAMA_70B.n_params * 2 / GB:.0f} GB."
        ),
    ),
    Number(
        id="cache-fits",
        chapter="04_kv_cache",
        section="What fits on a card",
        level=2,
        text=f"{SHAPE_8B} "
        "A card has 80 · 10⁹ bytes, of which 90 % may hold weights and cache, all in bf16. How "
        "many sequences of 8,192 tokens fit beside the weights, at most?",
        answer=lambda: max_batch(LLAMA_8B, 0.9 * H100.memory_bytes, 8192),
        unit="sequences",
        rtol=0,
        slips=(
            (
                lambda: 0.9 * H100.memory_bytes // kv_cache_bytes(LLAMA_8B, 8192),
                "The weights need their place, too.",
            ),
            (
                lambda: max_batch(LLAMA_8B, H100.memory_bytes, 8192),
                "You used the whole memory. A tenth is kept for activations and the runtime.",
            ),
            (
                lambda: max_batch(LLAMA_8B, 0.9 * 80 * GIB, 8192),
                "You took GiB for GB: the card has 80 · 10⁹ bytes.",
            ),
            (
                lambda: max_batch(MHA_8B, 0.9 * H100.memory_bytes, 8192),
                "You counted query heads. Only the 8 KV heads are stored.",
            ),
        ),
        worked=lambda: (
            f"72 GB - {WEIGHTS_8B / GB:.1f} GB of weights, divided by 131,072 B · 8,192 tokens = "
            f"{kv_cache_bytes(LLAMA_8B, 8192) / GB:.3f} GB each, rounded down."
        ),
    ),
    Number(
        id="cache-q8",
        chapter="04_kv_cache",
        section="A smaller cache, and what it costs",
        level=1,
        text="A cache in the format q8_0 stores 32 numbers as 32 codes of 8 bits and one scale of "
        "16 bits. How many times as many tokens fit into the same memory as in bf16?",
        answer=lambda: BYTES["bf16"] / BYTES["q8_0"],
        unit="",
        rtol=0.02,
        slips=(
            (lambda: BYTES["bf16"] / BYTES["int8"], "The scales take memory, too."),
            (
                lambda: BYTES["q8_0"] / BYTES["bf16"],
                "Upside down: this is the share of the memory.",
            ),
        ),
        worked=lambda: (
            f"(32 · 8 + 16) / 32 = 8.5 bits for a number, and 16 / 8.5 = {16 / 8.5:.2f}, not 2."
        ),
    ),
    Choice(
        id="cache-bug-position",
        chapter="04_kv_cache",
        section="A cache of twenty lines",
        level=2,
        text="One head of one decode step; `x` is the newest token, `rope` rotates by a position. "
        "Nothing fails, and the text is wrong. Which line is at fault?",
        code="q, k, v = x @ Wq, x @ Wk, x @ Wv\n"
        "q, k = rope(q, position=0), rope(k, position=0)\n"
        "K, V = append(K, k), append(V, v)\n"
        "scores = q @ K.T / sqrt(head_size)\n"
        "out = softmax(scores) @ V",
        right="Line 2: the position is the number of tokens before",
        worked="RoPE writes distances into the products of queries and keys. With position 0 for "
        "each new token they all seem to stand at the start of the text. Nothing fails; the model "
        "only sees a text in which order is lost.",
        wrong=(
            (
                "Line 1: keys must be made from the query",
                "Query, key and value are three projections of the same hidden state.",
            ),
            (
                "Line 3: a token must not attend to its own key and value",
                "It must. In a full pass the mask leaves the diagonal in.",
            ),
            (
                "Line 4: the causal mask is missing",
                "All cached keys are earlier or its own. With one query there is nothing to hide.",
            ),
        ),
    ),
    Choice(
        id="cache-no-queries",
        chapter="04_kv_cache",
        section="What is computed twice",
        level=1,
        text="Why does nobody cache queries?",
        right="A query is used once, in its own token's step",
        worked="Later tokens compare their own queries with the keys of all tokens before, and mix "
        "their values. Nobody needs an old query again.",
        wrong=(
            (
                "Queries are cheap to compute, keys and values are not",
                "With one KV head per query head all three cost the same.",
            ),
            (
                "Queries depend on the tokens that come later",
                "Then the past would have to be computed again with each token. It is causal.",
            ),
            (
                "The rotary position of a query changes in every step",
                "It belongs to the token's place in the text, for queries as for keys.",
            ),
        ),
    ),
    Explain(
        id="cache-fluent-nonsense",
        chapter="04_kv_cache",
        section="A cache of twenty lines",
        level=3,
        text="After a change to the attention code, generation with the KV cache is fluent and "
        "subtly wrong. How do you prove that the cache is at fault, and how do you find the place?",
        worked="Take a fixed text and compare logits, not texts: one uncached pass over all of it "
        "against token by token with the cache. They must agree to rounding, about 10⁻⁴ in "
        "float32; texts can agree by luck and differ by a tie. If they do not, note the first "
        "position that differs. Wrong from the first decoded token: a position or a mask that is "
        "off by one, or the prompt written twice. Wrong later: a window, a block border, a buffer "
        "that was overwritten. Then compare layer by layer, keys and values first, at that "
        "position; the first layer that differs holds the fault. Do it for a batch of uneven "
        "lengths, too.",
        points=(
            "Compare logits of an uncached pass with those of cached decoding on the same tokens",
            "With a tolerance that rounding explains; not by comparing generated texts",
            "Look for the first position and the first layer that differ",
            "Names likely faults: position off by one, mask, tokens stored twice, uneven batch",
        ),
    ),
)


def _cache_equals_weights(arch: Architecture, n_tokens: int) -> float:
    return LLAMA_8B.n_params * BYTES["bf16"] / kv_cache_bytes(arch, n_tokens)


_M1_BOUND = ACCELERATORS["M1"].bandwidth / 4.08e9

THROUGHPUT = (
    Number(
        id="throughput-8b-bound",
        chapter="05_throughput",
        section="One step, many readers",
        level=1,
        text=f"{SHAPE_8B} {CARD} "
        "What is the most tokens per second that plain decoding of one sequence can reach in "
        "bf16 on this card? Count all parameters as read once per token, and leave the cache out.",
        answer=lambda: decode_step(LLAMA_8B, H100, batch=1, context=1).tokens_per_s,
        unit="tokens/s",
        slips=(
            (
                lambda: decode_step(LLAMA_8B, H100, 1, 1, dtype="fp8").tokens_per_s,
                "A bf16 weight takes two bytes, not one.",
            ),
            (
                lambda: H100.peak() / (2 * LLAMA_8B.n_params),
                "That is the bound of the arithmetic. Reading the weights takes far longer.",
            ),
        ),
        worked=lambda: (
            f"{WEIGHTS_8B / GB:.2f} GB at 3.35 TB/s take {1e3 * WEIGHTS_8B / H100.bandwidth:.1f} "
            f"ms, so {H100.bandwidth / WEIGHTS_8B:.0f} tokens per second at best."
        ),
    ),
    Number(
        id="throughput-cache-equals-weights",
        chapter="05_throughput",
        section="Where it ends",
        level=2,
        text=f"{SHAPE_8B} "
        "All sequences have a context of 8,192 tokens, weights and cache are in bf16. At "
        "which batch does a decode step read as many bytes of cache as of weights?",
        answer=lambda: _cache_equals_weights(LLAMA_8B, 8192),
        unit="sequences",
        slips=(
            (
                lambda: _cache_equals_weights(MHA_8B, 8192),
                "You counted query heads. Only the 8 KV heads are read.",
            ),
            (
                lambda: 2 * _cache_equals_weights(LLAMA_8B, 8192),
                "Keys and values are both read: the factor 2 is missing.",
            ),
            (
                lambda: _cache_equals_weights(LLAMA_8B, 8192) / 2,
                "Both are in bf16: the weights have two bytes as well.",
            ),
        ),
        worked=lambda: (
            f"{WEIGHTS_8B / GB:.2f} GB of weights, {kv_cache_bytes(LLAMA_8B, 8192) / GB:.3f} GB of "
            f"cache per sequence: {_cache_equals_weights(LLAMA_8B, 8192):.1f}. There, a card "
            "reaches half of the tokens per second that it approaches with ever larger batches."
        ),
    ),
    Number(
        id="throughput-ceiling",
        chapter="05_throughput",
        section="Where it ends",
        level=2,
        text=f"{SHAPE_8B} {CARD} "
        "Take the memory-bound model of decode: a step reads the weights once and the cache "
        "of each sequence, all in bf16, at 4,096 tokens each. If memory were unlimited, how many "
        "tokens per second would the card approach as the batch grows?",
        answer=lambda: H100.bandwidth / kv_cache_bytes(LLAMA_8B, 4096),
        unit="tokens/s",
        slips=(
            (
                lambda: H100.bandwidth / kv_cache_bytes(MHA_8B, 4096),
                "You counted query heads. Only the 8 KV heads are read.",
            ),
            (
                lambda: H100.peak() / (2 * LLAMA_8B.n_params),
                "That is the ceiling of the arithmetic. Here the caches set a lower one.",
            ),
            (
                lambda: 2 * H100.bandwidth / kv_cache_bytes(LLAMA_8B, 4096),
                "Keys and values are both read: the factor 2 is missing.",
            ),
        ),
        worked=lambda: (
            "The weights vanish beside the caches, so each token costs the reading of one cache: "
            f"{kv_cache_bytes(LLAMA_8B, 4096) / GB:.3f} GB. 3.35 TB/s over that is "
            f"{H100.bandwidth / kv_cache_bytes(LLAMA_8B, 4096):,.0f} tokens per second. Half the "
            "context doubles it."
        ),
    ),
    Number(
        id="throughput-dollars",
        chapter="05_throughput",
        section="A planner",
        level=1,
        text="A card costs 2.50 dollars per hour, also while it is idle. When it is busy it writes "
        "2,500 tokens per second, and it is busy 60 % of the time. What do a million output tokens "
        "cost, in dollars?",
        answer=lambda: cost_per_million_tokens(2500, 2.5, 0.6),
        unit="dollars",
        slips=(
            (
                lambda: cost_per_million_tokens(2500, 2.5),
                "The card is paid while it is idle, too: its tokens get dearer.",
            ),
            (
                lambda: 0.6 * cost_per_million_tokens(2500, 2.5),
                "Idle time makes tokens dearer, not cheaper: divide by 0.6.",
            ),
        ),
        worked=lambda: (
            "An hour holds 3600 · 0.6 · 2500 = 5.4 million tokens, so a million costs "
            f"{cost_per_million_tokens(2500, 2.5, 0.6):.3f} dollars."
        ),
    ),
    Choice(
        id="throughput-second-card",
        chapter="05_throughput",
        section="The Pareto curve",
        level=2,
        text="64 users write at the same time on one card; decode waits for memory, and weights "
        "and caches take comparable bytes. You add a second card with a copy of the model, and "
        "half of the users move there. The number of users stays. What happens?",
        right="Each token comes sooner, and the total less than doubles",
        worked="Each card reads its weights for 32 users instead of 64, so a step is shorter, but "
        "not half as long. The weights are now read twice. Two copies double the tokens only with "
        "twice the users.",
        wrong=(
            (
                "Each token takes as long as before, and the total doubles",
                "That is with 128 users. With 64 the batches are half as large.",
            ),
            (
                "Each token comes in half the time, and the total doubles",
                "Only the caches are halved on each card. The weights are not.",
            ),
            (
                "Nothing changes, since the same users write the same tokens",
                "A user's next token comes after a step, and steps got shorter.",
            ),
        ),
    ),
    Choice(
        id="throughput-impossible",
        chapter="05_throughput",
        section="A detector of impossible numbers",
        level=2,
        text="A table on the web: \u201ca 7B model, file of 4.08 GB, on a base Apple M1 (68 GB/s): "
        "40 tokens per second\u201d, at batch 1, one token per pass. What do you make of it?",
        right="Impossible: memory allows less than half",
        worked=lambda: (
            "Each token reads the file once: 68.25 GB/s over 4.08 GB is "
            f"{_M1_BOUND:.1f} tokens per second. It was another chip, another model, or several "
            "tokens per pass."
        ),
        wrong=(
            (
                "Plausible, if the cache is quantised as well",
                "A smaller cache does not shrink the weights, which are read for each token.",
            ),
            (
                "Plausible: it is within the FLOP/s of the chip",
                "It is, but the weights must also come from memory, and that is slower.",
            ),
            (
                "Plausible: most of the file stays in the chip's caches",
                "The caches hold some megabytes, the file four thousand.",
            ),
        ),
    ),
    Explain(
        id="throughput-three-times",
        chapter="05_throughput",
        section="What the formula leaves out",
        level=3,
        text="At batch 1 your decode step takes three times as long as reading the weights would. "
        "How do you find out where the time goes? Name likely causes.",
        worked="First check the bound: the bytes really read, in which format, and the bandwidth "
        "that a plain copy reaches on this card. Then record a trace of a few steps. Gaps between "
        "kernels mean that the host is too slow to launch them: capture a CUDA graph, fuse, let "
        "the host prepare the next step meanwhile. If kernels fill the time, compute the bytes per "
        "second of each: a matrix product far below the copy rate is the wrong kernel for one row, "
        "or unpacks weights outside the chip. Attention at a long context may use few processors, "
        "since there is one query per head: split the keys. Last the ends of a step: sampling, "
        "copying logits to the host, text handling. A step that takes the same time for a model of "
        "half the width is overhead.",
        points=(
            "Check the bound itself: bytes really read, and the bandwidth that a copy reaches",
            "Look at a trace for gaps between kernels: launch overhead, a slow host",
            "CUDA graphs, fusion or overlap of host and device against gaps",
            "Compute achieved bytes per second per kernel: wrong kernel, attention not split",
            "Sampling, transfers or synchronisation at the end of each step",
        ),
    ),
)

QUESTIONS: tuple[InterviewQuestion, ...] = (
    *START,
    *GENERATE,
    *METRICS,
    *ROOFLINE,
    *CACHE,
    *THROUGHPUT,
)
