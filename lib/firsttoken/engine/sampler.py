"""From logits to tokens: what a request makes of its part of a pass."""

import numpy as np

from firsttoken.engine.requests import EngineRequest, TokenLogprobs
from firsttoken.generate.drafting import check_proposal
from firsttoken.sampling.logits import log_softmax

Array = np.ndarray


def next_tokens(request: EngineRequest, logits: Array) -> list[int]:
    """Return the tokens that follow a request's text: one, and the drafts kept before it.

    Shapes: logits (γ+1, V), behind the text and behind each of γ drafts
    """
    if not request.proposal.tokens:
        return [request.text.choose(logits[0])]
    return check_proposal(request.text, logits, request.proposal)


def token_logprobs(logits: Array, token: int, n: int) -> TokenLogprobs:
    """Return the log-probability of a token and the n likeliest ones.

    Shapes: logits (V,)

    >>> said = token_logprobs(np.log(np.array([0.25, 0.75])), token=0, n=1)
    >>> round(said.logprob, 3), [token for token, _ in said.top]
    (-1.386, [1])
    """
    p = log_softmax(logits)
    top = np.argsort(-p, kind="stable")[:n]
    return TokenLogprobs(token, float(p[token]), tuple((int(i), float(p[i])) for i in top))
