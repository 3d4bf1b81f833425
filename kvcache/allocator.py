"""Page numbers and who holds them."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from kvcache.errors import AuditError, OwnershipError, PoolExhausted


class PageAllocator:
    """Hand out page numbers 0 .. num_pages - 1 with reference counts.

    Free pages are kept as maximal runs [start, stop) in ascending order, so that one request gets
    neighbours whenever neighbours are free: attention then reads a slice instead of a gather.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._refcounts = [0] * num_pages
        self._runs: list[tuple[int, int]] = [(0, num_pages)] if num_pages else []
        self._num_free = num_pages

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_used(self) -> int:
        return self.num_pages - self._num_free

    def allocate(self, num_pages: int) -> list[int]:
        """Take `num_pages` pages, ascending, each with one reference.

        First fit over the free runs; only when no run is long enough the longest ones are joined.
        Raises PoolExhausted, taking nothing, when too few are free.
        """
        if num_pages > self._num_free:
            raise PoolExhausted(num_pages, self._num_free, "pages")
        fitting = (run for run in self._runs if run[1] - run[0] >= num_pages)
        first_fit = next(fitting, None)
        by_length = sorted(self._runs, key=lambda run: run[0] - run[1])
        pages: list[int] = []
        for run in [first_fit] if first_fit else by_length:
            taken = min(num_pages - len(pages), run[1] - run[0])
            if taken:
                self._cut(run, taken)
                pages.extend(range(run[0], run[0] + taken))
        pages.sort()
        for page in pages:
            self._refcounts[page] = 1
        self._num_free -= num_pages
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Add one reference to each page. Raises OwnershipError when one of them is free."""
        pages = list(pages)
        for page in pages:
            if not self.refcount(page):
                raise OwnershipError(f"page {page} is free and cannot be shared")
        for page in pages:
            self._refcounts[page] += 1

    def free(self, pages: Iterable[int]) -> list[int]:
        """Drop one reference of each page and return the pages that became free.

        Raises OwnershipError, dropping nothing, when a page has fewer references than are dropped.
        """
        dropped = Counter(pages)
        for page, count in dropped.items():
            if count > self.refcount(page):
                raise OwnershipError(
                    f"page {page} freed {count} times but held {self.refcount(page)} times"
                )
        freed = []
        for page, count in dropped.items():
            self._refcounts[page] -= count
            if not self._refcounts[page]:
                self._put_back(page)
                freed.append(page)
        self._num_free += len(freed)
        return freed

    def refcount(self, page: int) -> int:
        """Return how many hold the page. Raises OwnershipError when there is no such page."""
        if not 0 <= page < self.num_pages:
            raise OwnershipError(f"page {page} is not among the {self.num_pages} of this pool")
        return self._refcounts[page]

    def audit(self) -> None:
        """Raise AuditError unless free and held pages add up and every free run is maximal."""
        free = [page for start, stop in self._runs for page in range(start, stop)]
        expected = [page for page, count in enumerate(self._refcounts) if not count]
        if free != expected or len(free) != self._num_free:
            raise AuditError(
                f"{self._num_free} pages counted free, {len(free)} in free runs, "
                f"{len(expected)} without a holder"
            )
        stops = [stop for _, stop in self._runs[:-1]]
        starts = [start for start, _ in self._runs[1:]]
        if any(stop >= start for stop, start in zip(stops, starts, strict=True)):
            raise AuditError(f"free runs touch or overlap: {self._runs}")
        if min(self._refcounts, default=0) < 0:
            raise AuditError("a page has a negative reference count")

    def _cut(self, run: tuple[int, int], num_pages: int) -> None:
        index = bisect_left(self._runs, run)
        rest = (run[0] + num_pages, run[1])
        self._runs[index : index + 1] = [rest] if rest[0] < rest[1] else []

    def _put_back(self, page: int) -> None:
        start, stop = page, page + 1
        index = bisect_left(self._runs, (start, stop))
        if index < len(self._runs) and self._runs[index][0] == stop:
            stop = self._runs.pop(index)[1]
        if index and self._runs[index - 1][1] == start:
            index -= 1
            start = self._runs.pop(index)[0]
        self._runs.insert(index, (start, stop))
