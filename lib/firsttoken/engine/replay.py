"""An engine's work again: a trace sent as it came, and how close an answer's decisions were."""

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from firsttoken.batching import Request
from firsttoken.engine.engine import Engine
from firsttoken.engine.requests import RequestOptions
from firsttoken.metrics import RequestTrace
from firsttoken.models.protocols import Model
from firsttoken.sampling import SamplingParams, next_token_distribution
from firsttoken.sampling.params import penalize

Array = np.ndarray


def serve_trace(
    engine: Engine,
    requests: Sequence[Request],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | None = None,
) -> list[RequestTrace]:
    """Send each prompt to the engine when its request arrives, in real time; return the traces.

    Request i brings prompts[i], of its n_prompt tokens, and goes on for its n_output tokens
    whatever the model says (default: greedily), as in `batching.simulate` on a virtual clock. A
    request that arrives during a step waits for its end. Traces are in the order of the requests,
    on the clock of the engine's steps; the requests' clock begins with the call.

    Units:  seconds
    Raises: ValueError, before anything is sent, for another number of prompts than requests, a
            prompt of another length than its request says, a request longer than the model's
            context, whatever `Engine.submit` refuses, an engine at work and one with max_waiting.
    """
    params = SamplingParams(temperature=0.0) if params is None else params
    if engine.unfinished:
        raise ValueError("engine has requests of its own, expected an idle one")
    if engine.max_waiting is not None:
        raise ValueError(f"engine has max_waiting {engine.max_waiting}, expected None: all wait")
    if len(prompts) != len(requests):
        raise ValueError(f"{len(prompts)} prompts for {len(requests)} requests, expected as many")
    context = engine.model.arch.max_context or math.inf
    for i, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
        if len(prompt) != request.n_prompt or request.n_prompt + request.n_output > context:
            raise ValueError(
                f"prompts: {len(prompt)} ids for request {i}, expected its n_prompt "
                f"{request.n_prompt}, with n_output {request.n_output} at most {context}"
            )
    wanted = [replace(params, max_tokens=request.n_output, stop=()) for request in requests]
    for i, prompt in enumerate(prompts):
        try:
            engine._sequence(prompt, wanted[i], RequestOptions(ignore_eos=True))
        except ValueError as error:
            raise ValueError(f"request {i}: {error}") from error
    begin_s = engine.now_s()
    coming = deque(sorted(range(len(requests)), key=lambda i: requests[i].arrival_s))
    times: list[list[float]] = [[] for _ in requests]
    while coming or engine.unfinished:
        while coming and begin_s + requests[coming[0]].arrival_s <= engine.now_s():
            i = coming.popleft()

            def note(token: int, i: int = i) -> None:
                times[i].append(engine.now_s())

            engine.submit(prompts[i], wanted[i], on_token=note, ignore_eos=True)
        if not engine.unfinished:
            time.sleep(max(0.0, begin_s + requests[coming[0]].arrival_s - engine.now_s()))
        engine.step()
    return [
        RequestTrace(begin_s + request.arrival_s, tuple(token_times), request.n_prompt)
        for request, token_times in zip(requests, times, strict=True)
    ]


def decision_margins(
    model: Model, prompt_ids: Sequence[int], ids: Sequence[int], params: SamplingParams
) -> Array:
    """Return how far each token of an answer was from becoming another one.

    The answer, `ids`, is that of `generate` or an `Engine`, without a constraint. It takes one pass
    over prompt and answer; the random numbers are drawn again from the seed.

    At temperature 0 the margin is the difference of the two largest logits, after the penalties;
    else the distance of the random number from the nearer end of its token's share of the
    distribution, as a probability. Neighbours in a pass change the last bits of the logits, since
    a product over more rows may add up in another order. So they can change a token only where its
    margin is as small. (Filters cut, too: a cut between two near ties is not in the margin.)

    Shapes: ids (n,), result (n,)
    Units:  logits at temperature 0, else probability; infinite where one token has it all
    Raises: ValueError for an empty answer, and a temperature above 0 without a seed.

    >>> from firsttoken.generate import generate
    >>> from firsttoken.models.llama import load_model
    >>> model, params = load_model("draft"), SamplingParams(temperature=0.0, max_tokens=5)
    >>> margins = decision_margins(model, [5, 6], generate(model, [5, 6], params).ids, params)
    >>> margins.shape, bool(margins.min() > 1e-4)  # no two logits tie within rounding
    ((5,), True)
    """
    if len(ids) == 0:
        raise ValueError("ids must hold at least one token, got none")
    if params.temperature > 0 and params.seed is None:
        raise ValueError("params.seed must be given, to draw the same numbers again; got None")
    text, n_prompt = [*prompt_ids, *ids], len(prompt_ids)
    logits = np.asarray(model([text[:-1]]))[0, n_prompt - 1 :]
    context = params, [text[:n_prompt]] * len(ids), [list(ids[:i]) for i in range(len(ids))]
    if params.temperature == 0:
        second, first = np.partition(penalize(logits, *context), -2, axis=-1)[:, -2:].T
        return first - second
    mass = next_token_distribution(logits, *context).cumsum(axis=-1, dtype=np.float64)
    uniform = np.random.default_rng(params.seed).random((len(ids), 1))
    distance = np.abs(mass / mass[:, -1:] - uniform)
    # The last sum is 1, where no share ends and another begins.
    return np.where(mass < mass[:, -1:], distance, np.inf).min(axis=-1)
