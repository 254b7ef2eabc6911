"""Strange values: whatever a reader passes, nothing may raise and nothing may be believed."""

from hypothesis import strategies as st


class Hostile:
    """Raises wherever it is touched."""

    def __getattribute__(self, name):
        raise RuntimeError("do not touch")

    def _raise(self, *args, **kwargs):
        raise RuntimeError("do not touch")

    __eq__ = __repr__ = __str__ = __array__ = __float__ = __len__ = __iter__ = __bool__ = _raise
    __call__ = __hash__ = __getitem__ = __deepcopy__ = _raise


class AlwaysEqual:
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


class Unreadable(list):
    def __repr__(self):
        raise SystemExit


class BadFloat(float):
    def __repr__(self):
        raise RecursionError

    def __float__(self):
        raise ZeroDivisionError


class BadText(str):
    def __getitem__(self, key):
        raise MemoryError


def recursive_list():
    loop = []
    loop.append(loop)
    return loop


def endless(*args, **kwargs):
    return endless(*args, **kwargs)


strange = st.one_of(
    st.builds(Hostile),
    st.builds(AlwaysEqual),
    st.builds(Unreadable),
    st.builds(BadFloat),
    st.builds(BadText),
    st.builds(recursive_list),
    st.sampled_from([endless, Hostile, int, type, 10**5000, "9" * 10**6, " " * 10**6, b"4", range]),
    st.text(),
    st.floats(),
    st.integers(),
    st.complex_numbers(),
    st.binary(),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.floats(), st.text(), st.builds(Hostile)),
        lambda inner: st.one_of(
            st.lists(inner), st.dictionaries(st.text(), inner), st.tuples(inner, inner)
        ),
        max_leaves=8,
    ),
)
