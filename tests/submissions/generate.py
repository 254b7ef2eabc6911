"""Typical wrong submissions: solution cells, automatic points, words of the feedback."""

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

WRONG = {
    "logits one place late, mean of means": (
        {
            "option_log_p": {"distribution[places - 1, option]": "distribution[places, option]"},
            "merge": {"nats / n_tokens": "sum(part[0] for part in parts) / len(parts)"},
        },
        64,
        "you read them one place too late",
    ),
    "shows half a stop string": (
        {"stop_stream": SENDS_AT_ONCE},
        70,
        "what is sent cannot be taken back",
    ),
    "holds back too much, sends the last token": (
        {
            "stop_stream": {
                "stop.startswith(self.held[n_sent:])": "len(self.held) - n_sent < len(stop)"
            },
            "positions": {"range(n_new - 1)": "range(n_new)"},
        },
        65,
        "characters are held back, but only the last",
    ),
}
