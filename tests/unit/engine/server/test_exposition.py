"""The text of /metrics, in Prometheus' exposition format."""

from engine.server.metrics import Family, Histogram, Sample, Totals, text


def test_counters_gauges_and_histograms_in_the_text_format():
    requests = Totals("x_requests", "By route\nand outcome", ("route", "outcome"))
    requests.add(1, "/v1/models", "2xx")
    requests.add(2, "/v1/models", "2xx")
    requests.add(1, 'a"b\\c\n', "4xx")
    active = Totals("x_active", "Now", kind="gauge")
    active.set(3)
    waits = Histogram("x_seconds", "Waits", "model", (0.1, 1))
    for value in (0.05, 0.1, 0.5, 7):
        waits.observe(value, "m")
    empty = Family("x_empty", "No sample", "gauge", (Sample("", {}, float("inf")),))
    assert waits.counts() == {"m": 4}
    assert text([requests.family(), active.family(), waits.family(), empty]).splitlines() == [
        r"# HELP x_requests_total By route\nand outcome",
        "# TYPE x_requests_total counter",
        'x_requests_total{route="/v1/models",outcome="2xx"} 3.0',
        r'x_requests_total{route="a\"b\\c\n",outcome="4xx"} 1.0',
        "# HELP x_active Now",
        "# TYPE x_active gauge",
        "x_active 3.0",
        "# HELP x_seconds Waits",
        "# TYPE x_seconds histogram",
        'x_seconds_bucket{model="m",le="0.1"} 2.0',
        'x_seconds_bucket{model="m",le="1.0"} 3.0',
        'x_seconds_bucket{model="m",le="+Inf"} 4.0',
        'x_seconds_count{model="m"} 4.0',
        'x_seconds_sum{model="m"} 7.65',
        "# HELP x_empty No sample",
        "# TYPE x_empty gauge",
        "x_empty +Inf",
    ]
