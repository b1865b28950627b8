"""When a finding begins and when it ends."""

from leasehold.core.finding import Finding, Severity
from leasehold.core.model import LeaseKey
from leasehold.core.observing.finding_review import Review, review_findings


def finding(text: str = "it falls behind") -> Finding:
    return Finding(code="falling_behind", severity=Severity.NOTICE, text=text, shard=LeaseKey("shard-0"))


def reviews(*texts: str | None) -> list[Review]:
    """One review every 15 seconds. None: the finding is absent."""
    found, review = [], Review()
    for number, text in enumerate(texts):
        review = review_findings(review, [] if text is None else [finding(text)], number * 15_000)
        found.append(review)
    return found


def test_a_finding_begins_with_the_second_review_that_has_it() -> None:
    first, second, third = reviews("10 s", "25 s", "40 s")
    assert (first.began, first.lasting) == ((), ())
    assert [event.finding.text for event in second.began] == ["25 s"]
    assert third.began == ()
    assert [each.text for each in third.lasting] == ["40 s"]


def test_a_finding_of_a_moment_is_not_reported() -> None:
    assert all(not each.began and not each.ended and not each.lasting for each in reviews("now", None, None))


def test_a_finding_ends_with_the_second_review_that_lacks_it() -> None:
    *_, missing, over, after = reviews("a", "b", None, None, None)
    assert (missing.ended, [each.text for each in missing.lasting]) == ((), ["b"])
    assert [event.lasted_ms for event in over.ended] == [45_000]
    assert (over.lasting, after.ended) == ((), ())


def row(key: str | None) -> Finding:
    return Finding(
        code="unreadable_row", severity=Severity.PROBLEM, text=f"row {key} cannot be read", subject=key
    )


def test_findings_with_the_same_code_and_no_shard_begin_and_end_separately() -> None:
    """Two rows cannot be read, and one of them is repaired."""
    review, began, ended = Review(), [], []
    for number, found in enumerate([["a", "b"], ["b", "a"], ["b"], ["b"], [], []]):
        review = review_findings(review, [row(key) for key in found], number * 15_000)
        began += [event.finding.subject for event in review.began]
        ended += [(event.finding.subject, event.lasted_ms) for event in review.ended]
    assert sorted(str(each) for each in began) == ["a", "b"]
    assert ended == [("a", 45_000), ("b", 75_000)]


def test_findings_that_nothing_tells_apart_are_counted() -> None:
    review = review_findings(Review(), [row(None), row(None)], 0)
    review = review_findings(review, [row(None), row(None)], 15_000)
    assert (len(review.began), len(review.lasting)) == (2, 2)
    review = review_findings(review, [row(None)], 30_000)
    review = review_findings(review, [row(None)], 45_000)
    assert (len(review.ended), len(review.lasting)) == (1, 1)


def test_a_finding_that_is_absent_once_goes_on() -> None:
    found = reviews("a", "b", None, "c", "d")
    assert sum(len(each.began) for each in found) == 1
    assert not any(each.ended for each in found)
