"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

READ_TOO_LATE = """def option_log_p(model, prompt, option):
    text = [*prompt, *option]
    distribution = softmax(model([text])[0].astype(float))
    places = np.arange(len(prompt), len(text))
    return float(np.log(distribution[places, option]).sum())
"""

MEAN_OF_MEANS = """def merged(parts):
    mean = sum(part[0] for part in parts) / len(parts)
    nats = sum(loss * n_tokens for loss, n_tokens, _ in parts)
    return math.exp(mean), nats / math.log(2) / sum(part[2] for part in parts)
"""

SENDS_AT_ONCE = """class StopStream:
    def __init__(self, stops):
        self.stops, self.stopped, self.text = stops, False, ""

    def push(self, piece):
        if self.stopped:
            return ""
        self.text += piece
        found = [self.text.find(stop) for stop in self.stops if stop in self.text]
        if not found:
            return piece
        self.stopped = True
        return piece[: max(0, min(found) - (len(self.text) - len(piece)))]

    def finish(self):
        return ""
"""

HOLDS_THE_LONGEST = """class StopStream:
    def __init__(self, stops):
        self.stops, self.stopped, self.held = stops, False, ""
        self.n_held = max((len(stop) - 1 for stop in stops), default=0)

    def push(self, piece):
        sent = ""
        for character in "" if self.stopped else piece:
            self.held += character
            complete = [stop for stop in self.stops if self.held.endswith(stop)]
            if complete:
                self.stopped = True
                sent += self.held[: len(self.held) - max(map(len, complete))]
                self.held = ""
                break
            n_sent = max(0, len(self.held) - self.n_held)
            sent, self.held = sent + self.held[:n_sent], self.held[n_sent:]
        return sent

    def finish(self):
        return self.held
"""

SENDS_THE_LAST = """def positions(n_prompt, n_new, context, n_kept):
    total = cached = n_prompt
    for _ in range(n_new):
        n_sent = n_kept if cached == context else 1
        cached = n_kept if cached == context else cached + 1
        total += n_sent
    return total
"""

WRONG = {
    "logits one place late, mean of means": (
        {"option_log_p": READ_TOO_LATE, "merge": MEAN_OF_MEANS},
        64,
        "you read them one place too late",
    ),
    "shows half a stop string": (
        {"stop_stream": SENDS_AT_ONCE},
        70,
        "what is sent cannot be taken back",
    ),
    "holds back too much, sends the last token": (
        {"stop_stream": HOLDS_THE_LONGEST, "positions": SENDS_THE_LAST},
        65,
        "characters are held back, but only the last",
    ),
}
