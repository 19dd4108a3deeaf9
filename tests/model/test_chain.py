"""Tests of fused chains: equality with separate block calls, and fallback to them if observers are present."""

from concurrent.futures import ThreadPoolExecutor
from threading import get_ident

import pytest
import torch

from dithc.engine import hcops, native
from dithc.engine.hcops.blocks.program import Program
from dithc.engine.hcops.token_shard import part_of
from dithc.model import DiT, DiTConfig
from dithc.model.fused_blocks import MAX_PROGRAMS
from tests.model.networks import nonzero

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"no C kernels: {native.load_library().reason}")

KINDS = {"original": {}, "modern": {"norm": "rms", "mlp": "swiglu", "position_embedding": "rope", "qk_norm": True}}


def create_model(**overrides: object) -> DiT:
    return nonzero(hidden_size=48, depth=3, num_heads=4, **overrides).eval()


def inputs(rows: int = 2, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 16, 48, generator=generator), torch.randn(rows, 48, generator=generator)


@torch.no_grad()
def one_by_one(model: DiT, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    for block in model.blocks:
        x = block(x, c)
    return x


@pytest.fixture
def recorded_programs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with one entry per recorded program."""
    found: list[int] = []
    record = Program.__init__
    monkeypatch.setattr(Program, "__init__", lambda *args, **kwargs: (found.append(1), record(*args, **kwargs))[1])
    return found


@pytest.fixture
def packed_weights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with one entry per packed weight."""
    found: list[int] = []
    library, pack = native.library(), native.library().hc_gemm_pack
    monkeypatch.setattr(library, "hc_gemm_pack", lambda *given: (found.append(1), pack(*given))[1])
    return found


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_chain_is_bit_identical_to_separate_blocks(kind: str, bf16: bool, recorded_programs: list[int]) -> None:
    model = create_model(**KINDS[kind])
    chain = model.chain()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16), part_of(16):
        for seed in range(3):
            x, c = inputs(seed=seed)
            kept = x.clone(), c.clone()
            assert torch.equal(chain(x, c), one_by_one(model, x, c))
            assert torch.equal(x, kept[0])
            assert torch.equal(c, kept[1])
        first, second = (chain(*inputs(seed=seed)) for seed in range(2))
    assert not torch.equal(first, second)  # control; the second pass has not overwritten the result of the first
    assert len(recorded_programs) == 1


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_chain_to_patches_includes_the_final_layer(
    kind: str, bf16: bool, recorded_programs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = create_model(**KINDS[kind])
    chain, called = model.chain(to_patches=True), []
    numbers = sum(weight.numel() for part in (model.blocks, model.final_layer) for weight in part.parameters())
    if not bf16:  # two calls: one block, then two blocks with the last layer
        monkeypatch.setattr("dithc.model.fused_blocks.MAX_FLOP", 2 * numbers * 2 * 16 / 1.4)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16), part_of(16):
        for seed in range(2):
            x, c = inputs(seed=seed)
            expected = model.final_layer(one_by_one(model, x, c), c)
            patches = chain(x, c)
            assert patches.shape == (2, 16, 2 * 2 * 8)
            assert patches.dtype is expected.dtype
            assert torch.equal(patches, expected)
        assert len(recorded_programs) == (1 if bf16 else 2)
        model.final_layer.linear.weight.mul_(2.0)
        assert torch.equal(chain(x, c), model.final_layer(one_by_one(model, x, c), c))
        assert not torch.equal(chain(x, c), patches)
        model.final_layer.linear.register_forward_hook(lambda *given: called.append(given))
        hooked = model.chain(to_patches=True)
        assert torch.equal(hooked(x, c), chain(x, c))
        assert len(called) == 1, "the observer must be called"


def test_changed_and_replaced_weights_update_the_chain_output(recorded_programs: list[int]) -> None:
    model = create_model()
    chain = model.chain()
    x, c = inputs()
    original = chain(x, c)
    with torch.no_grad():
        model.blocks[1].mlp.fc2.weight.mul_(2)
    changed = chain(x, c)
    assert torch.equal(changed, one_by_one(model, x, c))
    assert not torch.equal(changed, original)
    assert len(recorded_programs) == 2  # its packed weights existed before
    model.blocks[2].attn.qkv.weight.data = model.blocks[2].attn.qkv.weight.data * 3
    replaced = chain(x, c)
    assert torch.equal(replaced, one_by_one(model, x, c))
    assert not torch.equal(replaced, changed)
    assert len(recorded_programs) == 3
    model.blocks[0].attn.proj.bias = torch.nn.Parameter(torch.ones(48))
    assert torch.equal(chain(x, c), one_by_one(model, x, c))
    assert len(recorded_programs) == 4


def test_weights_are_packed_once_for_all_shapes_and_chain_parts(packed_weights: list[int]) -> None:
    model = create_model()
    chain = model.chain()
    for rows in (5, 6):
        x, c = inputs(rows)
        assert torch.equal(chain(x, c), one_by_one(model, x, c))
        assert torch.equal(chain[1:](chain[:1](x, c), c), one_by_one(model, x, c))
    assert len(packed_weights) == 3 * 4  # blocks, and their products over tokens


def test_packed_weights_ignore_numpy_writes_until_a_torch_update(packed_weights: list[int]) -> None:
    model = create_model()
    chain = model.chain()
    x, c = inputs(6)
    original = chain(x, c)
    model.blocks[1].attn.qkv.weight.detach().numpy()[:] = 0
    assert torch.equal(chain(x, c), original)  # control for the following tests: packed weights are used
    assert packed_weights
    with torch.no_grad():
        model.blocks[1].attn.qkv.weight.zero_()
    assert torch.equal(chain(x, c), one_by_one(model, x, c))


@pytest.mark.parametrize("short", ["memory", "versions"])
def test_chain_without_stored_packs_equals_blocks_and_logs_low_memory(
    short: str, packed_weights: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if short == "memory":
        monkeypatch.setattr("dithc.engine.hcops.c.library.available_bytes", lambda: 10_000)
        model = create_model()
    else:
        with torch.inference_mode():
            model = create_model()
    chain = model.chain()
    x, c = inputs(6)
    with caplog.at_level("INFO", "dithc"):
        for _ in range(2):
            assert torch.equal(chain(x, c), one_by_one(model, x, c))
    assert len(packed_weights) == 0
    assert len([text for text in caplog.messages if "packing the other weights" in text]) == (short == "memory")


def test_each_shape_and_dtype_records_a_program_within_the_cache_limit(recorded_programs: list[int]) -> None:
    model = create_model()
    chain = model.chain()
    for rows in range(1, MAX_PROGRAMS + 2):
        x, c = inputs(rows)
        assert torch.equal(chain(x, c), one_by_one(model, x, c))
    assert len(recorded_programs) == MAX_PROGRAMS + 1
    assert len(chain._programs) == MAX_PROGRAMS
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(chain(x, c), one_by_one(model, x, c))
    assert len(recorded_programs) == MAX_PROGRAMS + 2


def test_forward_hook_runs_and_disables_recording(recorded_programs: list[int]) -> None:
    model = create_model()
    hooked: list[int] = []
    model.blocks[1].register_forward_hook(lambda *_: hooked.append(1))
    x, c = inputs()
    assert torch.equal(model.chain()(x, c), one_by_one(model, x, c))
    assert len(hooked) == 2
    assert not recorded_programs


def test_alternative_backend_bypasses_the_recorded_program(recorded_programs: list[int]) -> None:
    model = create_model()
    chain = model.chain()
    x, c = inputs()
    served = chain(x, c)
    with hcops.use("reference"):
        torch.testing.assert_close(chain(x, c), served, rtol=1e-4, atol=1e-4)
        assert torch.equal(chain(x, c), one_by_one(model, x, c))
    assert len(recorded_programs) == 1
    assert torch.equal(chain(x, c), served)


@pytest.mark.parametrize(("most_flop", "calls"), [(1e3, 0), (3e6, 3), (6e6, 2), (1e9, 1)])
def test_chain_above_the_flop_limit_is_split_into_programs(
    most_flop: float, calls: int, recorded_programs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = create_model()
    monkeypatch.setattr("dithc.model.fused_blocks.MAX_FLOP", most_flop)
    x, c = inputs()
    assert torch.equal(model.chain()(x, c), one_by_one(model, x, c))
    assert len(recorded_programs) == calls


def test_concurrent_threads_return_correct_chain_outputs() -> None:
    model = create_model()
    chain = model.chain()
    given = [inputs(seed=seed) for seed in range(2)]
    expected = [one_by_one(model, *sample) for sample in given]

    def run(number: int) -> bool:
        return all(torch.equal(chain(*given[number]), expected[number]) for _ in range(40))

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(run, range(2))) == [True, True]


def test_chain_memory_is_independent_of_depth() -> None:
    sizes = []
    for depth in (2, 6):
        config = DiTConfig(input_size=8, patch_size=2, hidden_size=48, depth=depth, num_heads=4, num_classes=5)
        chain = DiT(config).eval().chain()
        chain(*inputs())
        (program,) = chain._programs.values()
        buffers = program._kernels.buffers
        sizes.append(sum(buffer.numel() for buffer in (*buffers._free, *buffers._taken, *buffers._kept)))
    assert sizes[0] == sizes[1]


def test_chain_programs_share_memory_and_packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of parts and shapes run one at a time."""
    model = create_model()
    full, parts = model.chain(), model.chain()
    given = [inputs(rows, seed=rows) for rows in (6, 3, 6)]
    used = []
    for chain, most_flop in ((full, 1e12), (parts, 3e6)):
        monkeypatch.setattr("dithc.model.fused_blocks.MAX_FLOP", most_flop * 3)
        for x, c in given:
            assert torch.equal(chain(x, c), one_by_one(model, x, c))
        used.append(sum(buffer.nbytes for buffer in chain._memory[get_ident()]))
    assert len(parts._parts) > 1
    assert used[1] <= 1.1 * used[0]
    packs = parts._packs
    kept = packs._num_bytes
    assert kept > 0
    with torch.no_grad():
        for weight in model.blocks.parameters():
            weight.mul_(1.5)
    for x, c in given:
        assert torch.equal(parts(x, c), one_by_one(model, x, c))
    assert packs._num_bytes == kept == sum(packed.nbytes for *_, packed in packs._kept.values())
