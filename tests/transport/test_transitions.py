"""How prompts take over: passed on to the engine, reported as they go."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.transport.conftest import Serve
from tests.transport.fake_host import FakeHost
from tests.transport.painting import revision_of
from tests.transport.realtime_client import RealtimeClient
from tests.transport.test_prompts_live import check_pixels_agree, outcomes
from transport.wire import Transition

MIXED = [{"text": "red", "weight": 3}, {"text": "night", "weight": 1}]


def events_of(client: RealtimeClient, event_id: str) -> list[tuple[bool, bool, bool]]:
    """Return in which chunks a control starts, goes on and is complete."""
    seen = [
        tuple(event_id in chunk[f"{kind}_event_ids"] for kind in ("started", "active", "completed"))
        for chunk in client.of_type("video.chunk_metadata")
    ]
    return [chunk for chunk in seen if any(chunk)]  # type: ignore[misc]


async def test_every_transition_reaches_the_engine(serve: Serve) -> None:
    """As it was asked for; what was left out stays open for the model to choose."""
    server = await serve()
    client = await server.start()
    asked: list[Transition] = []
    stream = server.host.streams["s1"]
    control = stream.control

    async def note(message: Any) -> Any:
        asked.append(message.transition)
        return await control(message)

    stream.control = note  # type: ignore[method-assign]
    for number, transition in enumerate(
        (
            None,
            {"mode": "cut"},
            {"mode": "recache"},
            {"mode": "reset"},
            {"mode": "blend"},
            {"mode": "blend", "chunks": 5, "curve": "slerp"},
        )
    ):
        fields = {} if transition is None else {"transition": transition}
        await client.prompt("blue", f"e{number}", **fields)
        await client.until("session.interaction.applied", event_id=f"e{number}")
    assert asked == [
        Transition(),
        Transition("cut"),
        Transition("recache"),
        Transition("reset"),
        Transition("blend"),
        Transition("blend", 5, "slerp"),
    ]


async def test_a_blend_is_reported_chunk_by_chunk(serve: Serve) -> None:
    """It starts, goes on, and is complete; applied is told with its first chunk."""
    server = await serve()
    client = await server.start()
    await client.more_frames(4)
    await client.prompt("blue", "b", transition={"mode": "blend", "chunks": 4})
    await client.until("session.interaction.applied", event_id="b")
    await client.more_frames(24)
    assert events_of(client, "b") == [
        (True, True, False),
        (False, True, False),
        (False, True, False),
        (False, False, True),
    ]
    assert len(outcomes(client)["b"]) == 2


async def test_q22_the_last_of_many_long_blends_wins(serve: Serve) -> None:
    """60 prompts, each over 10 chunks: the newest is on its way within two chunks, no queue."""
    server = await serve(FakeHost(chunk_s=0.1))
    client = await server.start()
    stream = server.host.streams["s1"]
    await client.more_frames(4)
    blend = {"mode": "blend", "chunks": 10}
    for number in range(1, 61):
        await client.prompt(f"scene {number:02}", f"e{number}", transition=blend)
        await asyncio.sleep(0.01)
    await client.until("session.interaction.queued", event_id="e60")
    made = stream.num_chunks
    applied = await client.until("session.interaction.applied", event_id="e60")
    assert applied["chunk_index"] <= made + 2
    await client.more_frames(8)
    assert revision_of(client.frames[-1].decode()) == 60
    check_pixels_agree(client)
    found = outcomes(client).values()
    assert all(seen in (["queued", "applied"], ["queued", "superseded"]) for seen in found)


async def test_weighted_prompts(serve: Serve) -> None:
    """At the start and in mid-stream; what is shown is told in the same form."""
    server = await serve()
    client = await server.connect()
    start = await client.start(MIXED)
    assert start["config"]["prompt"] == MIXED
    first = await client.until("video.chunk_metadata")
    assert first["prompt"] == MIXED
    await client.prompt([{"text": "one", "weight": 0.5}], "one")
    await client.until("session.interaction.applied", event_id="one")
    sixteen = [{"text": f"t{number}", "weight": 1} for number in range(16)]
    await client.prompt(sixteen, "many")
    await client.until("session.interaction.applied", event_id="many")
    prompts = [m["prompt"] for m in client.of_type("video.chunk_metadata") if "prompt" in m]
    assert prompts == [MIXED, "one", sixteen]


async def test_q18_bad_weights_leave_the_old_prompt_active(serve: Serve) -> None:
    """Zero, negative, not a number, too many, or with more than text and weight."""
    server = await serve()
    other = await server.start()
    client = await server.start()
    stream = server.host.streams["s2"]
    for number, bad in enumerate(
        (
            [{"text": "a", "weight": 0}],
            [{"text": "a", "weight": -1}, {"text": "b", "weight": 1}],
            [{"text": "a", "weight": "1"}],
            [{"text": "a", "weight": True}],
            [{"text": "a"}],
            [{"text": "a", "weight": 1, "colour": 1}],
            [{"text": " ", "weight": 1}],
            [{"text": "a", "weight": 1}] * 17,
        )
    ):
        await client.prompt(bad, f"bad{number}")
        error = await client.until("error", event_id=f"bad{number}")
        assert error["code"] == "invalid_request"
        assert error["param"].startswith("interaction.event.prompt")
        assert stream.revision == 0
    await client.check_streaming()
    await other.check_streaming()


async def test_a_score(serve: Serve) -> None:
    """Prompts at times: viewers learn each with its first chunk, in order and in time."""
    server = await serve()
    client = await server.connect()
    score = [
        {"at_s": 0.3, "prompt": "blue"},
        {"at_s": 0.7, "prompt": MIXED, "transition": {"mode": "blend", "chunks": 2}},
    ]
    await client.start("red", score=score)
    await client.until_frame(48)
    told = [m for m in client.of_type("video.chunk_metadata") if "prompt" in m]
    assert [m["prompt"] for m in told] == ["red", "blue", MIXED]
    assert [m["pts_ms"] for m in told] == [0, 300, 700]
    check_pixels_agree(client)
    async with server.http() as http:
        prompts = (await http.get("/v1/realtime/sessions/s1")).json()["prompts"]
    assert [entry["prompt"] for entry in prompts] == ["red", "blue", MIXED]


async def test_the_frame_rate_changes_in_mid_stream(serve: Serve) -> None:
    """From the next chunk on; time goes on without a jump."""
    server = await serve(FakeHost(fps=20, chunk_s=0.02))
    client = await server.start()
    await client.more_frames(8)
    await client.send("session.update", fps=40, event_id="u")
    applied = await client.until("session.interaction.applied", event_id="u")
    await client.until_frame(applied["frame_index"] + 20)
    steps = {
        later.pts_us - earlier.pts_us
        for earlier, later in zip(client.frames, client.frames[1:], strict=False)
        if later.index == earlier.index + 1 and earlier.index >= applied["frame_index"] + 4
    }
    assert steps == {25_000}
    times = [frame.pts_us for frame in client.frames]
    assert times == sorted(set(times))
