from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcache import OwnershipError, PageAllocator, PoolExhausted

NUM_PAGES = 17


class AllocatorMachine(RuleBasedStateMachine):
    """Compare the allocator with a plain count of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = PageAllocator(NUM_PAGES)
        self.held: Counter[int] = Counter()

    def longest_free_run(self) -> int:
        free = "".join(" " if page in self.held else "f" for page in range(NUM_PAGES))
        return max(len(run) for run in free.split(" "))

    @rule(num_pages=st.integers(0, NUM_PAGES))
    def allocate(self, num_pages: int) -> None:
        free = NUM_PAGES - len(self.held)
        if num_pages > free:
            with pytest.raises(PoolExhausted) as refusal:
                self.allocator.allocate(num_pages)
            assert (refusal.value.requested, refusal.value.available) == (num_pages, free)
            return
        longest = self.longest_free_run()
        pages = self.allocator.allocate(num_pages)
        assert len(set(pages)) == num_pages
        assert not set(pages) & set(self.held)
        assert pages == sorted(pages)
        if 0 < num_pages <= longest:
            assert pages == list(range(pages[0], pages[0] + num_pages))
        self.held.update(pages)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        pages = data.draw(st.lists(st.sampled_from(sorted(self.held)), max_size=5))
        self.allocator.share(pages)
        self.held.update(pages)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        elements = sorted(self.held.elements())
        positions = data.draw(st.sets(st.integers(0, len(elements) - 1)))
        dropped = Counter(elements[position] for position in positions)
        freed = self.allocator.free(dropped.elements())
        assert set(freed) == {page for page in dropped if dropped[page] == self.held[page]}
        assert len(freed) == len(set(freed))
        self.held -= dropped

    @rule(page=st.integers(0, NUM_PAGES - 1), others=st.booleans())
    def free_once_too_often(self, page: int, others: bool) -> None:
        pages = [page] * (self.held[page] + 1) + (sorted(self.held) if others else [])
        with pytest.raises(OwnershipError, match="freed"):
            self.allocator.free(pages)

    @rule(page=st.integers(0, NUM_PAGES - 1))
    def share_a_free_page(self, page: int) -> None:
        if page not in self.held:
            with pytest.raises(OwnershipError, match="is free"):
                self.allocator.share([*self.held, page])

    @invariant()
    def books_balance(self) -> None:
        self.allocator.audit()
        assert self.allocator.num_free + self.allocator.num_used == NUM_PAGES
        assert self.allocator.num_used == len(self.held)
        for page in range(NUM_PAGES):
            assert self.allocator.refcount(page) == self.held[page]


TestAllocatorMachine = AllocatorMachine.TestCase


def test_takes_the_first_run_that_fits() -> None:
    allocator = PageAllocator(10)
    allocator.allocate(10)
    allocator.free([1, 2, 4, 5, 6, 9])
    assert allocator.allocate(3) == [4, 5, 6]
    assert allocator.allocate(1) == [1]


def test_joins_the_longest_runs_when_none_fits() -> None:
    allocator = PageAllocator(10)
    allocator.allocate(10)
    allocator.free([0, 2, 3, 5, 6, 7])
    assert allocator.allocate(5) == [2, 3, 5, 6, 7]


def test_free_runs_grow_together_again() -> None:
    allocator = PageAllocator(6)
    pages = allocator.allocate(6)
    for page in (0, 2, 4, 5, 3, 1):
        allocator.free([page])
    assert allocator.allocate(6) == pages


def test_refusal_names_the_figures_and_takes_nothing() -> None:
    allocator = PageAllocator(4)
    allocator.allocate(3)
    with pytest.raises(PoolExhausted, match="2 pages requested, 1 available"):
        allocator.allocate(2)
    assert allocator.num_free == 1


@pytest.mark.parametrize("page", [-1, 4])
def test_unknown_pages_have_no_holder(page: int) -> None:
    allocator = PageAllocator(4)
    for use in (allocator.refcount, lambda p: allocator.free([p]), lambda p: allocator.share([p])):
        with pytest.raises(OwnershipError, match="not among the 4"):
            use(page)
