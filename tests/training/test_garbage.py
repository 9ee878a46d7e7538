"""What a run made before its first row of metrics is not looked at again."""

import gc

from dragoman.training.garbage import Aside


def is_looked_at(thing):
    return any(each is thing for each in gc.get_objects())


def test_what_lives_is_set_aside_once_whatever_was_before():
    """Python 3.12 has set aside objects of its own by then, which said that it was done."""
    gc.freeze()
    aside, early = Aside(), [1]
    try:
        aside.put()
        late = [2]
        aside.put()
        assert not is_looked_at(early)
        assert is_looked_at(late), "the first time only: a collection stops everything"
        aside.take_back()
        assert is_looked_at(early)
        aside.put()
        assert not is_looked_at(late)
    finally:
        gc.unfreeze()
