from contraflow.agent.claims import ClaimBook
from contraflow.core.handle import ClaimRequest


def request(claim_id: str = "c1") -> ClaimRequest:
    return ClaimRequest(claim_id, "acme", "key", start_by=60.0, max_read=10.0)


def test_a_claim_is_abandoned_when_nobody_waits_and_nobody_was_given_it() -> None:
    record = ClaimBook().open(request(), 0.0)
    record.waiting = 1
    record.in_flight = 1
    assert not record.abandoned
    record.waiting = 0
    assert not record.abandoned
    record.in_flight = 0
    assert record.abandoned
    record.delivered = True
    assert not record.abandoned


def test_a_new_link_tells_which_abandoned_claims_are_to_be_given_back() -> None:
    book = ClaimBook()
    abandoned = book.open(request("abandoned"), 0.0)
    book.open(request("delivered"), 0.0).delivered = True
    book.open(request("never made"), 0.0)
    assert book.reconcile(["abandoned", "delivered"]) == [abandoned]
    assert len(book) == 2


def test_a_claim_that_a_router_gave_back_is_given_back_again_after_a_lost_order() -> None:
    book = ClaimBook()
    record = book.open(request(), 0.0)
    record.delivered = True
    book.proven_unread("c1")
    assert book.reconcile(["c1"]) == [record]


def test_a_claim_of_an_earlier_agent_is_never_given_back_on_our_own_account() -> None:
    book = ClaimBook()
    assert book.reconcile(["foreign"]) == []
    assert not book.open(request("foreign"), 0.0).abandoned
    assert book.reconcile(["foreign"]) == []
    book.ended("foreign")
    assert book.open(request("foreign"), 0.0).abandoned


def test_a_claim_that_is_being_asked_for_anew_stays_when_its_end_is_reported() -> None:
    book = ClaimBook()
    record = book.open(request(), 0.0)
    record.waiting = 1
    book.ended("c1")
    assert book.open(request(), 5.0) is record


def test_claims_whose_hold_is_long_over_are_forgotten() -> None:
    book = ClaimBook()
    book.open(request("old"), 0.0).delivered = True
    book.open(request("new"), 1000.0)
    assert len(book) == 1
