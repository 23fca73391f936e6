"""The bench of packers: its records, its config file, its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmpack.bench.packers import PackersConfig, load_config, main, run
from mmpack.bench.peers import PEERS, buffers
from mmpack.bench.records import BenchRecord
from mmpack.bench.streams import WindowSize, replay_buffers, replay_window
from mmpack.errors import ConfigError
from mmpack.stats import packs_before_drain, waits
from mmpack.window import stream_packs

SHIPPED = Path(__file__).parents[2] / "configs" / "bench" / "packers.yaml"


def test_run_gives_a_record_for_each_case():
    records = run(PackersConfig(distributions=("text_2k", "uniform_8k"), windows=(20, 50), num_samples=500, repeats=1))
    assert [r.case for r in records] == [
        "text_2k/window=20",
        "text_2k/window=50",
        "uniform_8k/window=20",
        "uniform_8k/window=50",
    ]
    for record in records:
        assert record.subject == "mmpack"
        assert 80 < record.metrics["fill_percent"] <= 100
        assert record.metrics["us_per_pack"] > 0
        waited = record.metrics["longest_wait_samples"] / record.config["window"]
        assert record.metrics["longest_wait_windows"] == pytest.approx(waited)
    assert records == [BenchRecord.from_json(record.to_json()) for record in records]


def test_ours_fills_more_than_every_peer_that_is_installed():
    config = PackersConfig(
        distributions=("caption_4k", "chat_32k"),
        windows=(200,),
        num_samples=2000,
        whole_sets=(2000,),
        repeats=1,
        subjects=("mmpack", *PEERS),
    )
    records = run(config)
    assert {record.subject for record in records} == set(config.subjects)
    cases = {record.case for record in records}
    assert "chat_32k/window_tokens=131072" in cases
    for case in cases:
        fills = {r.subject: r.metrics["fill_percent"] for r in records if r.case == case and r.metrics}
        assert {"mmpack", "nemo_first_fit"} <= set(fills)
        assert all(fills["mmpack"] >= fill for fill in fills.values())
    for record in records:
        assert record.metrics or "pip install" in str(record.config["skipped"])


def test_whole_sets_count_packs_over_the_fewest_and_respect_the_cap_of_slow_peers():
    config = PackersConfig(
        distributions=("text_2k",),
        windows=(),
        whole_sets=(3000,),
        most_samples={"nemo_first_fit": 500},
        subjects=("mmpack", "energon_ffd", "nemo_first_fit"),
    )
    ours, first_fit = run(config)  # energon's users pack no whole sets
    assert (ours.config["num_samples"], first_fit.config["num_samples"]) == (3000, 500)
    assert ours.metrics["packs_over_fewest"] <= 1
    assert first_fit.metrics["packs_over_fewest_percent"] >= 0


def test_balance_of_ranks_gets_better_with_aligned_plans():
    config = PackersConfig(
        distributions=("caption_8k",),
        windows=(),
        balance_ranks=8,
        balance_steps=32,
        align_windows=(1, 16),
        subjects=("mmpack", "energon_ffd"),
    )
    free, aligned, flushed = run(config)
    assert aligned.case == "caption_8k/balance/ranks=8/align_window=16"
    assert 1 < aligned.metrics["max_to_mean_cost"] < free.metrics["max_to_mean_cost"]
    assert aligned.metrics["max_to_mean_cost"] < flushed.metrics["max_to_mean_cost"]
    most = 1.25 * 200 + 2 * 16 * 14  # windows, and packs of about 11 samples, 14 at most
    assert aligned.metrics["longest_wait_samples"] <= most


@pytest.mark.parametrize("peer", list(PEERS))
def test_a_peer_packs_every_sample_of_a_buffer_once(peer):
    if reason := PEERS[peer].missing():
        pytest.skip(reason)
    lengths = [1 + i * 37 % 64 for i in range(130)]
    parts = list(buffers(lengths, samples=50, tokens=None))
    assert [len(part) for part in parts] == [50, 50, 30]
    packs = PEERS[peer].pack_buffers(parts, 64)
    assert sorted(i for pack in packs for i in pack) == list(range(130))
    assert all(sum(lengths[i] for i in pack) <= 64 for pack in packs)
    assert all(len({i // 50 for i in pack}) == 1 for pack in packs)
    assert [pack[0] // 50 for pack in packs] == sorted(pack[0] // 50 for pack in packs)


def test_replays_agree_with_the_definitions():
    lengths = [1 + i * 37 % 64 for i in range(200)]
    packs = list(stream_packs(lengths, 64, window=20))
    replay = replay_window(packs, lengths, WindowSize(samples=20))
    assert replay.longest_wait == max(waits(packs, 20))
    assert replay.steady_packs == len(packs_before_drain(packs, 20))
    flushed = replay_buffers([[0], [1, 2], [3, 4], [5]], [[1, 1, 1], [1, 1, 1]], last_is_full=False)
    assert (flushed.steady_packs, flushed.longest_wait) == (2, 2)


def test_the_shipped_config_is_read():
    config = load_config(SHIPPED)
    assert config.windows == (50, 200, 1000)
    assert config.whole_sets == (100_000, 1_000_000)
    assert len(config.distributions) == 6
    assert config.num_samples == 20_000
    assert config.subjects == ("mmpack", *PEERS)
    assert config.balance_ranks == 64


def test_main_prints_json_lines(tmp_path, capsys):
    small = tmp_path / "small.yaml"
    small.write_text("bench: packers\ndistributions: [text_2k]\nwindows: [20]\nnum_samples: 200\n")
    assert main([str(small), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["bench"] == "packers"
    assert main([str(small)]) == 0
    assert capsys.readouterr().out.startswith("case")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bench: packers\nwindow: [5]\n", "unknown setting 'window'; did you mean 'windows'"),
        ("bench: packers\nwindows: 5\n", "windows=5; give a list of int"),
        ("bench: packers\nsubjects: [trl]\n", "unknown subject 'trl'"),
        ("bench: packers\nmost_samples: [1]\n", r"most_samples=\[1\]; give subject: whole number"),
        ("bench: packers\nmost_samples: {trl_bfd: 0}\n", "give at least 1 for each"),
        ("bench: packers\nwhole_sets: [0]\n", r"whole_sets=\[0\]; give sizes of at least 1"),
        ("bench: packers\nbalance_ranks: -1\n", "balance_ranks=-1"),
        ("bench: packers\nseed: x\n", "seed='x'; give a whole number"),
        ("bench: packers\ndistributions: [text_2]\n", "did you mean 'text_2k'"),
        ("bench: packers\nnum_samples: 10\n", "num_samples=10: too few"),
        ("bench: other\n", "first line should be 'bench: packers'"),
        ("{", "cannot be read as YAML"),
    ],
)
def test_a_wrong_config_is_refused_in_one_line(tmp_path, capsys, text, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(path)
    assert main([str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
