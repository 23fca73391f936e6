"""Every backend computes the same attention; each is judged by plain loops in float64."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmpack.attention import AUTO_ORDER, BACKENDS, Backend, choose
from mmpack.attention import flash_attn as flash_attn_module
from mmpack.attention import flex as flex_module
from mmpack.attention import torch_varlen as torch_varlen_module
from mmpack.errors import ConfigError

CPU = torch.device("cpu")
CPU_BACKENDS = ("reference", "sdpa_loop")
CUDA_BACKENDS = ("flash_attn", "torch_varlen", "flex")


def by_hand(
    q: Tensor, k: Tensor, v: Tensor, lengths_q: list[int], lengths_k: list[int], causal: bool, scale: float
) -> Tensor:
    """One query and one head at a time."""
    group = q.shape[1] // k.shape[1]
    out = torch.zeros_like(q)
    start_q = start_k = 0
    for num_q, num_k in zip(lengths_q, lengths_k, strict=True):
        for i in range(num_q):
            seen = num_k - num_q + i + 1 if causal else num_k
            if seen <= 0:
                continue
            for h in range(q.shape[1]):
                keys = k[start_k : start_k + seen, h // group]
                weights = torch.softmax(keys @ q[start_q + i, h] * scale, dim=0)
                out[start_q + i, h] = weights @ v[start_k : start_k + seen, h // group]
        start_q += num_q
        start_k += num_k
    return out


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=torch.int32)


def inputs(
    lengths_q: list[int], lengths_k: list[int], heads: int, kv_heads: int, dim: int, seed: int = 0
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(sum(lengths_q), heads, dim), (sum(lengths_k), kv_heads, dim), (sum(lengths_k), kv_heads, dim)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def run(
    backend: Backend, qkv: list[Tensor], lengths_q: list[int], lengths_k: list[int], causal: bool, scale: float
) -> Tensor:
    longest = max(lengths_q, default=0), max(lengths_k, default=0)
    cu_q, cu_k = offsets(lengths_q).to(qkv[0].device), offsets(lengths_k).to(qkv[0].device)
    return backend.attend(*qkv, cu_q, cu_k, *longest, causal=causal, scale=scale)


lengths = st.lists(st.integers(0, 6), min_size=1, max_size=5)


@pytest.mark.parametrize("name", CPU_BACKENDS)
@settings(max_examples=40, deadline=None)
@given(lengths=lengths, heads=st.sampled_from([(1, 1), (4, 2), (6, 2)]), causal=st.booleans())
def test_equals_plain_loops(name: str, lengths: list[int], heads: tuple[int, int], causal: bool) -> None:
    qkv = inputs(lengths, lengths, *heads, 4)
    out = run(BACKENDS.get(name), qkv, lengths, lengths, causal, 0.3)
    assert out.shape == qkv[0].shape
    torch.testing.assert_close(out, by_hand(*qkv, lengths, lengths, causal, 0.3), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CPU_BACKENDS)
@settings(max_examples=40, deadline=None)
@given(pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4), causal=st.booleans())
def test_other_number_of_keys_than_of_queries(name: str, pairs: list[tuple[int, int]], causal: bool) -> None:
    lengths_q, lengths_k = [q for q, _ in pairs], [k for _, k in pairs]
    qkv = inputs(lengths_q, lengths_k, 4, 2, 4)
    out = run(BACKENDS.get(name), qkv, lengths_q, lengths_k, causal, 0.5)
    torch.testing.assert_close(out, by_hand(*qkv, lengths_q, lengths_k, causal, 0.5), rtol=1e-12, atol=1e-12)


def run_with_repeated_end(
    backend: Backend, qkv: list[Tensor], sizes: list[int], more: int, causal: bool, scale: float
) -> Tensor:
    """With offsets of constant number, as CUDA graphs need: segments of no length, and a bound for the longest."""
    cu = offsets(sizes + [0] * more).to(qkv[0].device)
    return backend.attend(*qkv, cu, cu, sum(sizes), sum(sizes), causal=causal, scale=scale)


@pytest.mark.parametrize("name", CPU_BACKENDS)
@pytest.mark.parametrize("causal", [True, False])
def test_a_repeated_end_changes_nothing(name: str, causal: bool) -> None:
    sizes = [5, 3, 7]
    qkv = inputs(sizes, sizes, 4, 2, 8)
    few = run(BACKENDS.get(name), qkv, sizes, sizes, causal, 0.3)
    assert torch.equal(run_with_repeated_end(BACKENDS.get(name), qkv, sizes, 9, causal, 0.3), few)


@pytest.mark.parametrize("name", CPU_BACKENDS)
@pytest.mark.parametrize("causal", [True, False])
def test_gradients(name: str, causal: bool) -> None:
    sizes = [3, 0, 1, 4]
    qkv = [x.requires_grad_() for x in inputs(sizes, sizes, 4, 2, 4)]
    assert torch.autograd.gradcheck(lambda *x: run(BACKENDS.get(name), list(x), sizes, sizes, causal, 0.5), qkv)


@pytest.mark.parametrize("name", CPU_BACKENDS)
def test_gradients_where_queries_see_nothing(name: str) -> None:
    sizes_q, sizes_k = [4, 2, 3], [2, 0, 5]
    qkv = [x.requires_grad_() for x in inputs(sizes_q, sizes_k, 2, 1, 4)]
    assert torch.autograd.gradcheck(lambda *x: run(BACKENDS.get(name), list(x), sizes_q, sizes_k, True, 0.5), qkv)


@pytest.mark.parametrize("name", CPU_BACKENDS)
def test_a_changed_token_does_not_reach_another_segment(name: str) -> None:
    sizes = [5, 3, 7]
    q, k, v = (x.float() for x in inputs(sizes, sizes, 4, 2, 8))
    before = run(BACKENDS.get(name), [q, k, v], sizes, sizes, True, 0.35)
    k[5:8] += 1.0
    v[5:8] -= 1.0
    moved = (run(BACKENDS.get(name), [q, k, v], sizes, sizes, True, 0.35) - before).abs()
    assert moved[:5].sum() == moved[8:].sum() == 0
    assert moved[5:8].min() > 0


def test_reference_computes_half_precision_in_float32() -> None:
    sizes = [40, 24]
    qkv = [x.to(torch.bfloat16) for x in inputs(sizes, sizes, 2, 2, 16)]
    out = run(BACKENDS.get("reference"), qkv, sizes, sizes, True, 0.25)
    exact = by_hand(*(x.double() for x in qkv), sizes, sizes, True, 0.25)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, exact.to(torch.bfloat16), rtol=8e-3, atol=1e-3)  # the last rounding only


# --- choosing ----------------------------------------------------------------------------------------------------


def test_every_backend_loads_under_its_own_name_and_auto_knows_only_backends() -> None:
    assert {BACKENDS.get(name).name for name in BACKENDS} == set(BACKENDS)
    assert set(AUTO_ORDER) <= set(BACKENDS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_auto_on_cpu_is_the_sdpa_loop(dtype: torch.dtype) -> None:
    assert choose("auto", device=CPU, dtype=dtype, head_dim=64, needs_grad=True).name == "sdpa_loop"


@pytest.mark.parametrize("name", CUDA_BACKENDS)
def test_a_cuda_backend_is_refused_on_cpu_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{name}' cannot run.*CUDA.*use 'auto'"):
        choose(name, device=CPU, dtype=torch.bfloat16, head_dim=64, needs_grad=True)


def test_unknown_backend_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'sdpa_loop'"):
        choose("sdpa_lop", device=CPU, dtype=torch.float32, head_dim=64, needs_grad=False)


def test_integers_are_refused_by_all() -> None:
    with pytest.raises(ConfigError, match="no attention backend"):
        choose("auto", device=CPU, dtype=torch.int64, head_dim=64, needs_grad=False)


@pytest.mark.parametrize(
    ("name", "dtype", "head_dim", "reason"),
    [
        ("flash_attn", torch.float32, 64, "float16 or bfloat16"),
        ("flash_attn", torch.bfloat16, 300, "up to 256"),
        ("torch_varlen", torch.float32, 64, "float16 or bfloat16"),
        ("torch_varlen", torch.float16, 12, "multiples of 8"),
        ("flex", torch.float64, 64, "float32, float16 or bfloat16"),
        ("flex", torch.float32, 24, "powers of two"),
    ],
)
def test_reasons_on_cuda(name: str, dtype: torch.dtype, head_dim: int, reason: str) -> None:
    assert reason in str(BACKENDS.get(name).supports(torch.device("cuda"), dtype, head_dim, True))


@pytest.mark.parametrize("name", ["flash_attn", "torch_varlen"])
def test_old_gpu_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "8.0" in str(BACKENDS.get(name).supports(torch.device("cuda"), torch.float16, 64, True))


def test_old_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch_varlen_module, "_kernel", lambda: lambda query, is_causal=False: query)
    reason = torch_varlen_module.supports(torch.device("cuda"), torch.float16, 64, True)
    assert "lacks ['enable_gqa', 'scale', 'window_size']" in str(reason)


def test_auto_on_a_gpu_takes_the_first_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    cuda = torch.device("cuda")
    assert choose("auto", device=cuda, dtype=torch.bfloat16, head_dim=64, needs_grad=True).name == "flash_attn"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert choose("auto", device=cuda, dtype=torch.float32, head_dim=64, needs_grad=True).name == "flex"
    assert choose("auto", device=cuda, dtype=torch.float32, head_dim=24, needs_grad=True).name == "sdpa_loop"
    assert choose("auto", device=cuda, dtype=torch.float64, head_dim=64, needs_grad=True).name == "sdpa_loop"


# --- the CUDA adapters, on CPU through a fake kernel ----------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [(4, 2), (4, 4)])
def test_torch_varlen_arguments(monkeypatch: pytest.MonkeyPatch, causal: bool, heads: tuple[int, int]) -> None:
    import inspect

    from torch.nn.attention.varlen import varlen_attn

    seen: dict[str, Any] = {}

    def kernel(*args: Any, **kwargs: Any) -> Tensor:
        seen.update(inspect.signature(varlen_attn).bind(*args, **kwargs).arguments)  # the real function's own names
        return args[0]

    monkeypatch.setattr(torch_varlen_module, "_kernel", lambda: kernel)
    sizes_q, sizes_k = [2, 3], [4, 1]
    q, k, v = inputs(sizes_q, sizes_k, *heads, 8)
    run(BACKENDS.get("torch_varlen"), [q, k, v], sizes_q, sizes_k, causal, 0.7)
    assert seen["query"] is q
    assert seen["key"] is k
    assert seen["value"] is v
    assert seen["cu_seq_q"].tolist() == [0, 2, 5]
    assert seen["cu_seq_k"].tolist() == [0, 4, 5]
    assert (seen["max_q"], seen["max_k"], seen["scale"]) == (3, 4, 0.7)
    assert seen["window_size"] == ((-1, 0) if causal else (-1, -1))
    assert seen["enable_gqa"] is (heads[0] != heads[1])


def test_flash_attn_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.5,
        softmax_scale: float | None = None,
        causal: bool = False,
    ) -> Tensor:
        assert (cu_seqlens_q.tolist(), cu_seqlens_k.tolist()) == ([0, 2, 5], [0, 4, 5])
        assert (max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal) == (3, 4, 0.0, 0.7, True)
        return q + 0 * k.sum() * v.sum()

    monkeypatch.setattr(flash_attn_module, "_kernel", lambda: kernel)
    sizes_q, sizes_k = [2, 3], [4, 1]
    qkv = inputs(sizes_q, sizes_k, 4, 2, 8)
    assert run(BACKENDS.get("flash_attn"), qkv, sizes_q, sizes_k, True, 0.7).shape == qkv[0].shape


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("sizes_q", "sizes_k"),
    [([3, 0, 5, 1], [3, 0, 5, 1]), ([3, 5, 0, 0, 0], [3, 5, 0, 0, 0]), ([2, 3], [4, 1])],
)
def test_flex_through_its_uncompiled_kernel(
    monkeypatch: pytest.MonkeyPatch, causal: bool, sizes_q: list[int], sizes_k: list[int]
) -> None:
    """torch's flex_attention runs forward on CPU uncompiled: enough to judge the mask and the arguments."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, *, block_mask: Any, scale: float, enable_gqa: bool) -> Tensor:
        num_q, num_k = q.shape[2], k.shape[2]
        visible = torch.tensor(
            [
                [bool(block_mask.mask_mod(0, 0, torch.tensor(i), torch.tensor(j))) for j in range(num_k)]
                for i in range(num_q)
            ]
        )
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, scale=scale, enable_gqa=enable_gqa
        )
        return out.masked_fill(~visible.any(dim=-1)[:, None], 0.0)

    monkeypatch.setattr(flex_module, "_kernel", lambda: kernel)
    qkv = inputs(sizes_q, sizes_k, 4, 2, 16)
    out = run(BACKENDS.get("flex"), qkv, sizes_q, sizes_k, causal, 0.25)
    torch.testing.assert_close(out, by_hand(*qkv, sizes_q, sizes_k, causal, 0.25), rtol=1e-10, atol=1e-10)


def test_flex_on_nothing() -> None:
    qkv = inputs([0], [0], 2, 2, 16)
    assert run(BACKENDS.get("flex"), qkv, [0], [0], True, 0.25).shape == (0, 2, 16)


# --- numerics on a GPU -------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["sdpa_loop", *CUDA_BACKENDS])
@pytest.mark.parametrize("heads", [(4, 4), (8, 2)])
@pytest.mark.parametrize("causal", [True, False])
def test_equals_the_reference_on_a_gpu(name: str, heads: tuple[int, int], causal: bool) -> None:
    device, dtype = torch.device("cuda"), torch.bfloat16
    reason = BACKENDS.get(name).supports(device, dtype, 64, True)
    if reason is not None:
        pytest.skip(reason)
    sizes = [100, 1, 0, 257, 30]
    scale = 1 / math.sqrt(64)
    qkv = [x.to(device, dtype) for x in inputs(sizes, sizes, *heads, 64)]
    grad_out = torch.randn_like(qkv[0])
    results = []
    for backend, precision in ((name, dtype), ("reference", torch.float64)):
        leaves = [x.to(precision).requires_grad_() for x in qkv]
        out = run(BACKENDS.get(backend), leaves, sizes, sizes, causal, scale)
        out.backward(grad_out.to(precision))
        results.append([out.detach(), *(x.grad for x in leaves)])
    for mine, exact in zip(*results, strict=True):
        assert mine is not None
        assert exact is not None
        assert float((mine.double() - exact).norm() / exact.norm()) < 2e-2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["sdpa_loop", *CUDA_BACKENDS])
def test_a_repeated_end_changes_nothing_on_a_gpu(name: str) -> None:
    device, dtype = torch.device("cuda"), torch.bfloat16
    reason = BACKENDS.get(name).supports(device, dtype, 64, False)
    if reason is not None:
        pytest.skip(reason)
    sizes = [100, 1, 257]
    qkv = [x.to(device, dtype) for x in inputs(sizes, sizes, 4, 2, 64)]
    few = run(BACKENDS.get(name), qkv, sizes, sizes, True, 0.125)
    torch.testing.assert_close(run_with_repeated_end(BACKENDS.get(name), qkv, sizes, 61, True, 0.125), few)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["sdpa_loop", *CUDA_BACKENDS])
def test_no_leak_on_a_gpu(name: str) -> None:
    device, dtype = torch.device("cuda"), torch.bfloat16
    reason = BACKENDS.get(name).supports(device, dtype, 64, False)
    if reason is not None:
        pytest.skip(reason)
    sizes = [100, 1, 257]
    q, k, v = (x.to(device, dtype) for x in inputs(sizes, sizes, 4, 2, 64))
    before = run(BACKENDS.get(name), [q, k, v], sizes, sizes, True, 0.125)
    start, end = list(pairwise(offsets(sizes).tolist()))[1]
    k[start:end] += 1.0
    v[start:end] -= 1.0
    moved = (run(BACKENDS.get(name), [q, k, v], sizes, sizes, True, 0.125) - before).abs()
    assert moved[:start].sum() == moved[end:].sum() == 0
