"""Questions about part III: choosing tokens."""

import math

import numpy as np

from firsttoken.appendix.interview.question import Choice, Explain, InterviewQuestion, Number
from firsttoken.drafts import expected_tree_tokens, typical_acceptance
from firsttoken.sampling import (
    apply_temperature,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    softmax,
)
from firsttoken.speculative import acceptance_rate, best_gamma, expected_tokens, speedup

_FOUR = np.log([0.4, 0.3, 0.2, 0.1])


def _top_share(temperature: float) -> float:
    return float(softmax(apply_temperature(np.array([2.0, 0.0]), temperature))[0])


def _n_kept(logits: np.ndarray) -> int:
    return int(np.isfinite(logits).sum())


def _min_p_gap(min_p: float, temperature: float) -> float:
    """Return how far below the best a logit may lie, found on a fine grid of logits."""
    logits = -np.arange(0, 6, 1e-3)
    kept = np.isfinite(keep_min_p(apply_temperature(logits, temperature), min_p))
    return float(-logits[kept].min())


SAMPLING = (
    Number(
        id="sampling-temperature",
        chapter="11_sampling",
        section="Temperature",
        level=1,
        text="A vocabulary of two tokens has the logits 2 and 0. With which probability is the "
        "first one drawn at temperature 0.5?",
        answer=lambda: _top_share(0.5),
        unit="",
        rtol=0.01,
        slips=(
            (lambda: _top_share(1.0), "That is at temperature 1."),
            (lambda: _top_share(2.0), "Logits are divided by the temperature, not multiplied."),
            (lambda: 1 - _top_share(0.5), "That is the other token's."),
        ),
        worked=lambda: (
            "The logits become 4 and 0, so the probability is 1 / (1 + e⁻⁴) = "
            f"{_top_share(0.5):.3f}. A temperature below 1 sharpens."
        ),
    ),
    Number(
        id="sampling-k-then-p",
        chapter="11_sampling",
        section="The order is part of the meaning",
        level=2,
        text="Four tokens have the probabilities 0.4, 0.3, 0.2 and 0.1. An engine first keeps the "
        "top 2 and makes their probabilities sum to 1 again. Then it applies top-p with p = 0.5: "
        "the smallest set, by falling probability, whose mass reaches p. How many tokens are left?",
        answer=lambda: _n_kept(keep_top_p(keep_top_k(_FOUR, 2), 0.5)),
        unit="tokens",
        rtol=0,
        slips=(
            (
                lambda: _n_kept(keep_top_p(_FOUR, 0.5)),
                "That applies top-p to the original probabilities. After top-k the first token "
                "has more than a half.",
            ),
            (lambda: 0, "The token that reaches p is kept, so there is always one."),
        ),
        worked="After top-k the first token has 0.4 / 0.7 = 0.57, which reaches 0.5 by itself. One "
        "token is left, where each filter by itself keeps two.",
    ),
    Number(
        id="sampling-min-p-gap",
        chapter="11_sampling",
        section="Three filters",
        level=2,
        text="An engine divides logits by the temperature and then applies min-p. The temperature "
        "is 0.7, min-p is 0.1: it keeps what has at least a tenth of the best token's probability. "
        "By how much may a raw logit lie below the best raw logit, at most?",
        answer=lambda: _min_p_gap(0.1, 0.7),
        unit="",
        slips=(
            (
                lambda: -math.log(0.1),
                "That is at temperature 1. Here the gap is divided by 0.7 before it is compared.",
            ),
            (
                lambda: -math.log(0.1) / 0.7,
                "The other way: gaps grow when they are divided by 0.7, so fewer may be left.",
            ),
            (lambda: -0.7 * math.log10(0.1), "The logits are natural logarithms."),
        ),
        worked=lambda: (
            "exp(-gap / 0.7) ≥ 0.1 means gap ≤ 0.7 · ln 10 = "
            f"{_min_p_gap(0.1, 0.7):.2f}. No softmax over the vocabulary is needed."
        ),
    ),
    Choice(
        id="sampling-bug-top-p",
        chapter="11_sampling",
        section="Three filters",
        level=2,
        text="This sampler should implement top-p: of the tokens by falling probability, keep the "
        "smallest set whose mass reaches `top_p`, and draw from it. What does it do wrong?",
        code="order = np.argsort(-p)\n"
        "mass = np.cumsum(p[order])\n"
        "kept = order[mass <= top_p]\n"
        "q = np.zeros_like(p)\n"
        "q[kept] = p[kept]\n"
        "token = rng.choice(len(p), p=q / q.sum())",
        right="It drops the token with which the mass crosses `top_p`",
        worked="With p = (0.95, 0.05) and top_p = 0.9 it keeps nothing and divides by zero. A "
        "token belongs in as long as the mass *before* it is below `top_p`.",
        wrong=(
            (
                "It draws a place in the sorted order, not a token",
                "`q` is indexed by token again, so `rng.choice` draws tokens.",
            ),
            (
                "It keeps the least likely tokens",
                "`argsort(-p)` puts the likeliest first.",
            ),
            (
                "It does not make the probabilities sum to 1 again",
                "It does, in the last line.",
            ),
        ),
    ),
    Choice(
        id="sampling-penalty-sign",
        chapter="11_sampling",
        section="Penalties",
        level=2,
        text="A repetition penalty divides the logit of every token that has occurred by 1.2. What "
        "goes wrong?",
        right="A token with a negative logit becomes likelier",
        worked="-3 / 1.2 = -2.5. The usual rule divides positive logits and multiplies negative "
        "ones. It still depends on where zero lies, although adding a constant to all logits "
        "changes no probability.",
        wrong=(
            (
                "All logits shrink, which only raises the temperature",
                "Only those that occurred are divided.",
            ),
            (
                "The probabilities no longer sum to 1",
                "The softmax that follows makes them sum to 1.",
            ),
            (
                "Tokens that never occurred are penalised as well",
                "Their logits stay. Their probabilities rise, if anything.",
            ),
        ),
    ),
    Choice(
        id="sampling-json-invalid",
        chapter="11_sampling",
        section="Brackets need a stack",
        level=2,
        text="A service constrains its output to JSON by masking logits, and the mask is correct. "
        "Still, some answers do not parse. What is the likeliest reason?",
        right="The limit on tokens cut them off",
        worked="A mask only allows what can still become valid. It does not make the text end in "
        "time. Reserve tokens to close, or report the finish reason and do not parse.",
        wrong=(
            (
                "The temperature was too high for the mask",
                "A masked token has probability zero at any temperature.",
            ),
            (
                "Top-p removed the tokens that the mask had allowed",
                "It comes after the mask on the logits, and leaves at least one that was allowed.",
            ),
            (
                "The model had never seen the schema in training",
                "Then the contents may be silly. They parse all the same.",
            ),
        ),
    ),
    Explain(
        id="sampling-moved-engine",
        chapter="11_sampling",
        section="The order is part of the meaning",
        level=3,
        text="A service moves to another engine with the same model, temperature 1.5 and top-p "
        "0.9. The texts get wilder. Neither engine has a bug. Explain, and say how you would prove "
        "it.",
        worked="The order differs. If top-p comes first, it cuts on the distribution at "
        "temperature 1, and the temperature then flattens what is left. If the temperature comes "
        "first, it flattens the whole distribution, and a nucleus of 0.9 then holds many more "
        "tokens, bad ones among them. Defaults may differ as well: a top-k or min-p that is on in "
        "one engine, penalties, or a generation config that comes with the model. To prove it, "
        "take the logits of a few positions, apply both orders, and compare the kept sets and the "
        "probabilities; then draw many tokens from both engines for one prompt and compare "
        "frequencies. To keep the old behaviour, set the order, or find numbers that give it.",
        points=(
            "The order of temperature and top-p differs between engines",
            "Temperature above 1 first flattens, so that the nucleus holds more tokens",
            "Defaults may differ: top-k, min-p, penalties, the model's own generation config",
            "Proof on the same logits: compare kept sets or probabilities of both orders",
        ),
    ),
)


def _yield(alpha: float, gamma: int) -> float:
    return float(expected_tokens(alpha, gamma))


def _times_faster(alpha: float, gamma: int, cost_ratio: float) -> float:
    return float(speedup(alpha, gamma, cost_ratio))


_P, _Q = np.array([0.6, 0.3, 0.1]), np.array([0.5, 0.2, 0.3])

SPECULATIVE = (
    Number(
        id="speculative-alpha",
        chapter="12_speculative",
        section="How many guesses survive",
        level=1,
        text="At some position the target gives three tokens the probabilities 0.6, 0.3 and 0.1, "
        "the draft 0.5, 0.2 and 0.3. The draft draws one token, and the exact rule of speculative "
        "sampling decides. With which probability is that token kept?",
        answer=lambda: float(acceptance_rate(_P, _Q)),
        unit="",
        slips=(
            (lambda: float(1 - acceptance_rate(_P, _Q)), "That is the probability of rejection."),
            (
                lambda: float(_P @ _Q),
                "That is the chance that two independent draws agree. The rule keeps more.",
            ),
            (lambda: 1, "The third token is drafted three times as often as the target wants it."),
        ),
        worked=lambda: (
            "The sum of the smaller of both: 0.5 + 0.2 + 0.1 = "
            f"{float(acceptance_rate(_P, _Q)):.1f}, one minus the total variation distance."
        ),
    ),
    Number(
        id="speculative-expected",
        chapter="12_speculative",
        section="How many tokens a pass yields",
        level=1,
        text="Each drafted token is kept with probability 0.8, independently, if those before it "
        "were. A round drafts a chain of 4 tokens. How many tokens does a pass of the target yield "
        "on average, its own token included?",
        answer=lambda: _yield(0.8, 4),
        unit="tokens",
        slips=(
            (
                lambda: 1 + 4 * 0.8,
                "A round stops at the first rejection: later guesses are lost with it.",
            ),
            (
                lambda: _yield(0.8, 4) - 1,
                "The target adds one token of its own in every round.",
            ),
            (lambda: 4 * 0.8, "A round stops at the first rejection, and the target adds a token."),
        ),
        worked=lambda: (
            f"1 + 0.8 + 0.8² + 0.8³ + 0.8⁴ = {_yield(0.8, 4):.2f}. The i-th guess counts "
            "only if all before it were kept."
        ),
    ),
    Number(
        id="speculative-speedup",
        chapter="12_speculative",
        section="When it is faster",
        level=2,
        text="Each of 3 drafted tokens is kept with probability 0.8 if those before it were. A "
        "step of the draft takes 0.2 of a step of the target, and checking 4 tokens takes as long "
        "as a step of the target. How many times faster than plain decoding is this?",
        answer=lambda: _times_faster(0.8, 3, 0.2),
        unit="",
        slips=(
            (lambda: _yield(0.8, 3), "Drafting takes time: 3 · 0.2 steps in each round."),
            (
                lambda: (1 + 3 * 0.8) / 1.6,
                "A round stops at the first rejection: it yields fewer than 1 + 3 · 0.8 tokens.",
            ),
            (
                lambda: _yield(0.8, 3) / 1.2,
                "The draft makes three steps, one for each guess.",
            ),
        ),
        worked=lambda: (
            f"{_yield(0.8, 3):.2f} tokens in 1 + 3 · 0.2 steps: {_times_faster(0.8, 3, 0.2):.2f}."
        ),
    ),
    Choice(
        id="speculative-bug-residual",
        chapter="12_speculative",
        section="The rule",
        level=2,
        text="`p` is the target's distribution, `q` the draft's, and `x` was drawn from `q`. The "
        "code should return a token that follows `p` exactly. What is wrong?",
        code="if rng.random() < p[x] / q[x]:\n    return x\nreturn rng.choice(len(p), p=p)",
        right="The last line must draw from max(p - q, 0), scaled",
        worked="Tokens with q < p come too seldom from the draft, by p - q. The replacement must "
        "supply exactly that. Drawing from `p` again favours what the draft likes.",
        wrong=(
            (
                "The first line must compare with q[x] / p[x]",
                "Then what the target wants most would be kept least.",
            ),
            (
                "The first line must compare with min(1, p[x] / q[x])",
                "That is the same: a random number below 1 is below any ratio above 1.",
            ),
            (
                "Nothing: the token follows p, whether it was kept or replaced",
                "With p = (1/2, 1/2), q = (1, 0): half kept, and half of the rest is token 0 "
                "again, 3/4 in all.",
            ),
        ),
    ),
    Choice(
        id="speculative-seed",
        chapter="12_speculative",
        section="The distribution of real texts",
        level=1,
        text="At temperature 1 and with the same seed, an engine writes another text with "
        "speculative decoding than without. Its rule is exact. What follows?",
        right="Nothing: the same distribution, another draw",
        worked="Speculation draws more random numbers, for drafts and for acceptance. Exactness is "
        "about the distribution. Test it by frequencies, or at temperature 0 by texts, up to ties "
        "in rounding.",
        wrong=(
            (
                "The draft leaks into the text, so there is a bug",
                "It may be so in some engine, but a different draw is no evidence for it.",
            ),
            (
                "The acceptance is too low to reproduce the text",
                "Low acceptance costs time. It never changes the distribution.",
            ),
            (
                "The draft needs the same seed as the target",
                "Equal seeds would not make equal draws, since the distributions differ.",
            ),
        ),
    ),
    Explain(
        id="speculative-slower-in-production",
        chapter="12_speculative",
        section="Company",
        level=3,
        text="Speculative decoding made one chat 2.1 times faster on the bench. In production, at "
        "a batch of 128, it is slower than plain decoding. Why, and what do you do?",
        worked="On the bench a step waited for memory, and checking γ + 1 = 5 tokens cost what one "
        "costs. With 128 sequences a check carries 640 tokens, twice the ridge of an H100, so the "
        "linear layers take twice as long, and rejected guesses are wasted work that others wait "
        "for. Long contexts soften it, since a check reads each cache only once. The draft's own "
        "steps and cache take time and memory from the batch. "
        "Acceptance may also be lower on real prompts and at real temperatures. Measure: the time "
        "of a pass over γ + 1 tokens at this batch, acceptance per position on real traffic, the "
        "draft's step. Then lower γ with the load, to 0 above some batch; draft only where it is "
        "sure or free, as by look-up; keep it for quiet hours and latency-bound users.",
        points=(
            "At batch 1 decode is memory-bound, so checking several tokens is nearly free",
            "At batch 128 a check carries 128 · (γ + 1) tokens and becomes compute-bound",
            "Rejected guesses are wasted arithmetic, and the draft costs time and memory as well",
            "Measure verify cost at this batch, and acceptance on real traffic",
            "Lower γ with the load, down to none",
        ),
    ),
)

_TREE = np.array([[0.6, 0.2]])
_TYPICAL = np.array([0.85, 0.1, 0.05])

DRAFTS = (
    Number(
        id="drafts-two-tries",
        chapter="13_drafts",
        section="Several guesses for one place",
        level=1,
        text="A draft hands over two guesses for the same next place. The first is right with "
        "probability 0.6, the second with 0.2; they are never both right. The target checks both "
        "in one pass, greedily, and adds its own next token after what it keeps. How many tokens "
        "does the pass yield on average?",
        answer=lambda: expected_tree_tokens(_TREE, [-1, -1]),
        unit="tokens",
        slips=(
            (
                lambda: expected_tree_tokens(np.array([[0.6], [0.2]]), [-1, 0]),
                "That is a chain, in which the second guess counts only if the first was right.",
            ),
            (lambda: 0.8, "The target's own token comes on top, in every pass."),
            (lambda: 1 + 0.6, "The second guess is there for when the first is wrong."),
        ),
        worked="One token always, and one more with probability 0.6 + 0.2.",
    ),
    Number(
        id="drafts-best-gamma",
        chapter="13_drafts",
        section="Cheap and close",
        level=2,
        text="Each drafted token is kept with probability 0.5 if those before it were. A draft "
        "step takes 0.15 of a step of the target. A check takes as long as such a step, whatever "
        "the number of tokens. Which number of drafted tokens per round gives the highest speed?",
        answer=lambda: best_gamma(0.5, 0.15),
        unit="tokens",
        rtol=0,
        slips=(
            (
                lambda: 1,
                "The second guess adds 0.25 tokens for 0.15 steps, and still pays.",
            ),
            (
                lambda: 3,
                "The third guess adds 0.125 tokens for 0.15 steps, fewer per step than the rest "
                "of the round: it does not pay.",
            ),
            (
                lambda: 32,
                "More guesses always yield more tokens, but each of them takes a draft step.",
            ),
        ),
        worked=lambda: (
            "Tokens per step for 1, 2, 3 guesses: "
            f"{', '.join(f'{_times_faster(0.5, g, 0.15):.3f}' for g in (1, 2, 3))}. Late guesses "
            "are seldom reached, and cost as much as early ones."
        ),
    ),
    Choice(
        id="drafts-lookup",
        chapter="13_drafts",
        section="The clock",
        level=1,
        text="A look-up draft searches the text so far for its last few tokens, and guesses that "
        "what followed then follows now. For which of these loads does it help most?",
        right="Rewriting a source file with a few changes",
        worked="Most of the output stands in the prompt, word for word, so long runs are kept, and "
        "the guesses cost nothing.",
        wrong=(
            ("Answering short factual questions", "The answer does not stand in the question."),
            (
                "Translating a novel into another language",
                "The output has other words than the input. Names alone repeat.",
            ),
            (
                "Writing poems at temperature 1.2",
                "Little repeats, and a hot distribution rejects much of what is guessed.",
            ),
        ),
    ),
    Choice(
        id="drafts-typical",
        chapter="13_drafts",
        section="Rules that are not exact",
        level=2,
        text="Medusa's \u201ctypical acceptance\u201d keeps a guess whose target probability is "
        "above a limit that depends on the entropy, whatever the draft's probability for it. What "
        "does that change at temperature 1?",
        right="The text no longer follows the target's distribution",
        worked=lambda: (
            "A guess is kept or not by a threshold, not in proportion to p / q. With p = (0.85, "
            f"0.10, 0.05) it accepts {typical_acceptance(_TYPICAL).sum()} of the three, the first "
            "among them. So a draft that always guesses the first gets it every time, not 85 times "
            "in 100."
        ),
        wrong=(
            (
                "Nothing but the speed: the target still checks every token",
                "It checks, but by another rule. Only the rule with the residual keeps p.",
            ),
            (
                "The text becomes greedy, as at temperature 0",
                "Several tokens may pass. It is neither greedy nor exact.",
            ),
            (
                "Acceptance falls, since the limit is stricter than p / q",
                "It rises. That is why it is used.",
            ),
        ),
    ),
    Choice(
        id="drafts-train-on",
        chapter="13_drafts",
        section="Train a head",
        level=2,
        text="You train a small draft for a chat model. On which text should it learn to guess?",
        right="On what the target writes for real prompts",
        worked="Kept is what agrees with the target, so the target is the teacher, on the prompts "
        "and at the temperature of the service. Its full distributions teach more than its tokens.",
        wrong=(
            (
                "On the best human answers to such prompts",
                "They may be better, and the target would still not say them.",
            ),
            (
                "On the corpus that the target itself was trained on at first",
                "It is closer than nothing. But after tuning for chat the target writes otherwise.",
            ),
            (
                "On its own outputs, taken as correct",
                "It would learn to agree with itself.",
            ),
        ),
    ),
    Explain(
        id="drafts-choose",
        chapter="13_drafts",
        section="A service under load",
        level=3,
        text="You run a 70B model for coding assistance, mostly at small batches, at times under "
        "load. Choose between look-up in the prompt, a separate 1B draft, and a head that reads "
        "the target's features (as EAGLE). What do you measure before, and how do you combine "
        "them?",
        worked="Look-up first: it costs nothing, and code repeats; measure on real traffic how "
        "often it proposes and how much is kept. Behind it a feature head: it reads few bytes, "
        "sees what the target already computed, and agrees more often than a small model of equal "
        "cost; it must be trained for this very target and again when that changes. The separate "
        "1B draft needs no training if the vocabulary is the same, but each of its steps reads "
        "gigabytes, and it needs a cache of its own. Measure acceptance per position, the step of "
        "the draft, and the cost of a check at the batches that occur. Let γ fall with the load. "
        "Keep the check exact, so that no choice changes the text's distribution.",
        points=(
            "Look-up is free and fits code, where text repeats",
            "A feature head is cheap per guess and close to the target, but trained for it alone",
            "A separate draft needs the same vocabulary, and costs reads and a cache of its own",
            "Measure acceptance, draft step and verify cost on real traffic and at real batches",
            "Turn guessing down or off as the batch fills",
        ),
    ),
)

QUESTIONS: tuple[InterviewQuestion, ...] = (*SAMPLING, *SPECULATIVE, *DRAFTS)
