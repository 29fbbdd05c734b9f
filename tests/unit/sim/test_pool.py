"""The pool by itself: what is free, what can be found, and what its events say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.clock import ManualClock
from tests.support.sim_pair import running

from contraflow.sim.api import SimRequest
from contraflow.sim.engine import SimEngine
from contraflow.sim.fabric import MemoryFabric
from contraflow.sim.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from contraflow.sim.options import SimOptions
from contraflow.sim.pool import Block, Pool, chain_key

SIZE = 4


class Index:
    """What a listener knows from the events alone."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()

    def __call__(self, event: KvEvent) -> None:
        if isinstance(event, BlockStored):
            assert len(event.token_ids) == len(event.block_hashes) * event.block_size
            parent = event.parent_block_hash
            for i, key in enumerate(event.block_hashes):
                tokens = event.token_ids[i * SIZE : (i + 1) * SIZE]
                assert key == chain_key(parent, tokens, event.cache_salt)
                parent = key
            self.keys |= set(event.block_hashes)
        elif isinstance(event, BlockRemoved):
            assert self.keys >= set(event.block_hashes)
            self.keys -= set(event.block_hashes)
        else:
            assert isinstance(event, AllBlocksCleared)
            self.keys.clear()


def keys_of(tokens: list[int], salt: str = "") -> list[bytes]:
    keys: list[bytes] = []
    for start in range(0, len(tokens), SIZE):
        keys.append(chain_key(keys[-1] if keys else None, tokens[start : start + SIZE], salt))
    return keys


def test_block_zero_is_nobodys() -> None:
    pool = Pool(5, SIZE, lambda event: None)
    blocks = pool.allocate(4)
    assert blocks is not None
    assert sorted(block.block_id for block in blocks) == [1, 2, 3, 4]
    assert pool.allocate(1) is None


def test_what_does_not_fit_holds_nothing() -> None:
    pool = Pool(5, SIZE, lambda event: None)
    tokens = list(range(8))
    blocks = pool.allocate(2)
    assert blocks is not None
    pool.store(blocks, keys_of(tokens), parent=None, tokens=tokens)
    pool.release(blocks)
    found = pool.find(keys_of(tokens))
    assert pool.allocate(3, found) is None
    assert pool.num_free == 4
    assert pool.allocate(2, found) is not None
    assert pool.num_free == 0


def test_the_least_recently_used_goes_first_and_the_end_before_the_beginning() -> None:
    pool = Pool(5, SIZE, lambda event: None)
    for tokens in ([1] * 8, [2] * 8):
        blocks = pool.allocate(2)
        assert blocks is not None
        pool.store(blocks, keys_of(tokens), parent=None, tokens=tokens)
        pool.release(blocks)
    pool.allocate(1)
    assert len(pool.find(keys_of([1] * 8))) == 1
    assert len(pool.find(keys_of([2] * 8))) == 2
    pool.allocate(2)
    assert len(pool.find(keys_of([1] * 8))) == 0
    assert len(pool.find(keys_of([2] * 8))) == 1


def test_a_block_that_is_allocated_again_is_of_another_generation_and_keeps_what_it_held() -> None:
    pool = Pool(2, SIZE, lambda event: None)
    (block,) = pool.allocate(1) or [Block(0)]
    block.content.write(0, [1, 2])
    before = block.generation
    pool.release([block])
    (again,) = pool.allocate(1) or [Block(0)]
    assert (again.block_id, again.generation) == (block.block_id, before + 1)
    assert again.content.tokens == [1, 2]


async def test_an_engine_tells_what_it_computes_whole_block_by_whole_block() -> None:
    index = Index()
    engine = SimEngine(
        SimOptions(reference=True, block_size=SIZE, num_blocks=60),
        clock=ManualClock(),
        fabric=MemoryFabric(),
        on_kv_event=index,
    )
    prompt = list(range(97, 107))
    async with running([engine]):
        for salt in ("", "s"):
            request = SimRequest(salt, prompt, 23, ignore_eos=True, cache_salt=salt)
            outputs = [output async for output in engine.generate(request)]
            tokens = [*prompt, *(token for output in outputs for token in output.token_ids)]
            assert index.keys >= set(keys_of(tokens[:32], salt))  # the last token has no KV
        assert len(index.keys) == 16
        engine.clear_prefix_cache()
        assert index.keys == set()


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=4), st.sampled_from(["", "s"])),
        max_size=40,
    ),
    st.data(),
)
def test_events_tell_what_can_be_found_and_no_block_is_lost(
    requests: list[tuple[list[int], str]], data: st.DataObject
) -> None:
    index = Index()
    pool = Pool(9, SIZE, index)
    held: list[list[Block]] = []
    seen: set[bytes] = set()
    for kinds, salt in requests:
        if data.draw(st.booleans()) and held:
            pool.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
        tokens = [kind for kind in kinds for _ in range(SIZE)]
        keys = keys_of(tokens, salt)
        found = pool.find(keys)
        fresh = pool.allocate(len(keys) - len(found), found)
        if fresh is None:
            continue
        start = len(found)
        pool.store(
            fresh,
            keys[start:],
            parent=keys[start - 1] if start else None,
            tokens=tokens[start * SIZE :],
            salt=salt,
        )
        held.append([*found, *fresh])
        seen |= set(keys)
        assert len(pool.find(keys)) == len(keys)
        assert index.keys == {key for key in seen if pool.find([key])}
        used = {block.block_id for blocks in held for block in blocks}
        assert pool.num_free == pool.capacity - len(used)
    for blocks in held:
        pool.release(blocks)
    assert pool.num_free == pool.capacity
    pool.clear()
    assert index.keys == set()
    assert all(block.refs == 0 and block.key is None for block in pool.blocks)
