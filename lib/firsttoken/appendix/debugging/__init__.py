"""What is wrong with a service: from a symptom to its cause, by a check that runs.

Each check takes a model, an engine, or numbers of the reader's own, and returns a `Finding`: the
likeliest cause, and the numbers that speak for it. Each file is one group of symptoms: `model` and
`text` (wrong text), `speed`, `memory`, `load`, and `quality`. `broken` has something with each
fault that a check is to find.
"""

from firsttoken.appendix.debugging.finding import HEALTHY, Finding, verdicts
from firsttoken.appendix.debugging.load import (
    Benchmark,
    Load,
    why_a_larger_batch_does_not_help,
    why_many_users_slow_it_down,
    why_more_cards_do_not_help,
    why_the_benchmark_is_too_good,
    why_the_card_is_idle,
    why_the_stream_comes_at_once,
)
from firsttoken.appendix.debugging.memory import (
    Reading,
    why_a_restart_helps,
    why_memory_runs_out,
    why_requests_are_preempted,
    why_the_cache_is_larger_than_computed,
    why_the_server_does_not_start,
)
from firsttoken.appendix.debugging.model import (
    why_it_repeats,
    why_long_prompts_fail,
    why_nonsense,
    why_temperature_0_differs,
)
from firsttoken.appendix.debugging.quality import (
    why_fewer_bits_hurt,
    why_logprobs_differ,
    why_settings_differ,
    why_the_adapter_does_nothing,
    why_the_seed_does_not_help,
)
from firsttoken.appendix.debugging.speed import (
    SecondRequest,
    Stream,
    ask_twice,
    why_only_some_requests_are_slow,
    why_p99_is_high,
    why_speculation_is_slower,
    why_the_first_token_is_slow,
    why_the_prefix_cache_never_hits,
    why_the_second_request_is_slow,
    why_the_stream_has_gaps,
    why_tokens_are_slow,
)
from firsttoken.appendix.debugging.text import (
    why_characters_break,
    why_foreign_text,
    why_it_never_stops,
    why_json_is_cut_off,
    why_the_prompt_is_off,
    why_the_stop_string_shows,
)

__all__ = [
    "HEALTHY",
    "Benchmark",
    "Finding",
    "Load",
    "Reading",
    "SecondRequest",
    "Stream",
    "ask_twice",
    "verdicts",
    "why_a_larger_batch_does_not_help",
    "why_a_restart_helps",
    "why_characters_break",
    "why_fewer_bits_hurt",
    "why_foreign_text",
    "why_it_never_stops",
    "why_it_repeats",
    "why_json_is_cut_off",
    "why_logprobs_differ",
    "why_long_prompts_fail",
    "why_many_users_slow_it_down",
    "why_memory_runs_out",
    "why_more_cards_do_not_help",
    "why_nonsense",
    "why_only_some_requests_are_slow",
    "why_p99_is_high",
    "why_requests_are_preempted",
    "why_settings_differ",
    "why_speculation_is_slower",
    "why_temperature_0_differs",
    "why_the_adapter_does_nothing",
    "why_the_benchmark_is_too_good",
    "why_the_cache_is_larger_than_computed",
    "why_the_card_is_idle",
    "why_the_first_token_is_slow",
    "why_the_prefix_cache_never_hits",
    "why_the_prompt_is_off",
    "why_the_second_request_is_slow",
    "why_the_seed_does_not_help",
    "why_the_server_does_not_start",
    "why_the_stop_string_shows",
    "why_the_stream_comes_at_once",
    "why_the_stream_has_gaps",
    "why_tokens_are_slow",
]
