"""NVML as it answers on a Hopper card, on an older one, without permission, and where there is none at all."""

import pynvml
import pytest

from dragoman.monitor import gpu


class Nvml:
    """Stands for the driver: one card, two seconds of GPM samples at fixed rates."""

    def __init__(self, *, has_gpm=True):
        self.has_gpm, self.taken = has_gpm, 0

    def install(self, monkeypatch, **changed):
        answers = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: f"card {index}",
            "nvmlDeviceGetUUID": lambda card: "GPU-11-22",
            "nvmlDeviceGetName": lambda card: "H200",
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetMemoryInfo": lambda card: type("", (), {"total": 150, "used": 60}),
            "nvmlDeviceGetEnforcedPowerLimit": lambda card: 700_000,
            "nvmlDeviceGetMaxClockInfo": lambda card, clock: 1980,
            "nvmlDeviceGetUtilizationRates": lambda card: type("", (), {"gpu": 100}),
            "nvmlDeviceGetPowerUsage": lambda card: 523_400,
            "nvmlDeviceGetTotalEnergyConsumption": lambda card: 9_000,
            "nvmlDeviceGetClockInfo": lambda card, clock: 1700,
            "nvmlDeviceGetTemperature": lambda card, sensor: 61,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda card: 0x4 | 0x1,
            "nvmlDeviceGetPcieThroughput": lambda card, counter: 3,
            "nvmlGpmQueryDeviceSupport": lambda card: type("", (), {"isSupportedDevice": self.has_gpm}),
            "nvmlGpmSampleAlloc": pynvml.c_nvmlGpmSample_t,
            "nvmlGpmSampleGet": self.take,
            "nvmlGpmMetricsGet": self.metrics,
        }
        for name, answer in (answers | changed).items():
            monkeypatch.setattr(pynvml, name, answer)

    def take(self, card, sample):
        self.taken += 1
        return sample

    def metrics(self, query):
        values = {pynvml.NVML_GPM_METRIC_SM_UTIL: 83.25, pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: 2.0}
        for metric in query.metrics[: query.numMetrics]:
            metric.value = values.get(metric.metricId, 1.0)
            metric.nvmlReturn = 3 if metric.metricId == pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC else 0
        return query


def refuse(*_):
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)


def test_a_hopper_card_tells_all_with_units(monkeypatch):
    Nvml().install(monkeypatch)
    assert gpu.describe(gpu.handles()[0]) == {
        "name": "H200",
        "memory_bytes": 150,
        "power_limit_watts": 700.0,
        "max_sm_clock_mhz": 1980,
        "driver": "580.1",
        "missing": [],
    }
    (row,) = gpu.Cards().sample()
    assert (row["power_watts"], row["energy_joules"], row["sm_percent"]) == (523.4, 9.0, 83.25)
    assert row["pcie_received_bytes_per_s"] == 2 * 2**20
    assert row["nvlink_sent_bytes_per_s"] is None, "no bridge: NVML says so for this metric alone"
    assert row["throttle_reasons"] == ["power_cap"], "being idle is no reason to worry"


def test_a_card_without_gpm_gives_the_rest_and_says_what_is_missing(monkeypatch):
    Nvml(has_gpm=False).install(monkeypatch)
    (row,) = gpu.Cards().sample()
    assert "sm_percent" not in row
    assert (row["utilization_percent"], row["pcie_sent_bytes_per_s"]) == (100, 3 * 1024)
    assert gpu.describe("card 0")["missing"] == ["SM activity, NVLink traffic: this card or driver has no GPM metrics"]


@pytest.mark.parametrize("question", ["nvmlDeviceGetPowerUsage", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
def test_without_permission_the_other_figures_are_still_there(monkeypatch, question):
    Nvml().install(monkeypatch, **{question: refuse})
    (row,) = gpu.Cards().sample()
    assert row["temperature_celsius"] == 61
    assert (row["power_watts"] is None) == (question == "nvmlDeviceGetPowerUsage")
    assert ("sm_percent" in row) == (question == "nvmlDeviceGetPowerUsage")
    told = {"nvmlDeviceGetPowerUsage": "power_watts", "nvmlGpmSampleGet": "SM activity, NVLink traffic"}
    if question in told:
        assert gpu.describe("card 0")["missing"] == [f"{told[question]}: Insufficient Permissions"]


def test_gpm_figures_are_means_between_two_samples_in_turn(monkeypatch):
    nvml = Nvml()
    nvml.install(monkeypatch)
    cards = gpu.Cards()
    for _ in range(3):
        assert cards.sample()[0]["sm_percent"] == 83.25
    assert nvml.taken == 4


def test_cards_are_found_by_the_name_torch_knows(monkeypatch):
    Nvml().install(monkeypatch)
    assert gpu.index_of("11-22") == 0
    assert gpu.index_of("33-44") is None


def test_a_card_that_cannot_be_opened_hides_no_other(monkeypatch):
    """Places are those among the others, as CUDA counts them."""

    def open_card(index):
        return refuse() if index == 1 else f"card {index}"

    uuid = {"card 0": "GPU-00", "card 2": "GPU-22"}.get
    three = {"nvmlDeviceGetCount": lambda: 3, "nvmlDeviceGetHandleByIndex": open_card, "nvmlDeviceGetUUID": uuid}
    Nvml().install(monkeypatch, **three)
    assert gpu.handles() == ["card 0", "card 2"]
    assert gpu.index_of("22") == 1
    assert len(gpu.Cards().sample()) == 2


def test_a_machine_without_gpu_has_none(monkeypatch):
    Nvml().install(monkeypatch, nvmlInit=refuse)
    assert gpu.handles() == []
    assert gpu.Cards().sample() == []
