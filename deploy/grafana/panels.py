"""The panels of the dashboard. Queries are built from the metrics' definitions: a metric that does not exist, a rate of
a gauge, or a label that a metric lacks is an error here and not an empty panel later."""

import metrics

METRICS = metrics.read()
ROUTER = 'instance=~"$router"'
RANGE = "$__rate_interval"


class Query:
    """An expression, with the metrics it reads."""

    def __init__(self, text, names):
        self.text, self.names = text, names

    def __truediv__(self, other):
        return Query(f"{self.text} / {other.text}", self.names + other.names)


def series(name, kind, suffix="", **matched):
    metric = METRICS.get(name)
    if metric is None or metric.kind != kind:
        raise SystemExit(f"no {kind} {name} in docs/metrics.md")
    if unknown := set(matched) - metric.labels:
        raise SystemExit(f"{name} has no label {sorted(unknown)}")
    also = "".join(f', {label}=~"{value}"' for label, value in matched.items())
    return f"{name}{suffix}{{{ROUTER}{also}}}"


def over(function, by, text, names):
    for name in names:
        if unknown := set(by) - METRICS[name].labels - {"instance", "le"}:
            raise SystemExit(f"{name} has no label {sorted(unknown)}")
    grouped = f" by ({', '.join(by)})" if by else ""
    return Query(f"{function}{grouped} ({text})", names)


def rate(name, *by, **matched):
    """Sum of a counter's rate."""
    return over("sum", by, f"rate({series(name, 'counter', **matched)}[{RANGE}])", [name])


def gauge(function, name, *by, **matched):
    return over(function, by, series(name, "gauge", **matched), [name])


def quantile(share, name):
    rates = f"sum by (le) (rate({series(name, 'histogram', '_bucket')}[{RANGE}]))"
    return Query(f"histogram_quantile({share}, {rates})", [name])


def within(name, bound):
    """Share of a histogram's observations up to a bound."""
    bucket = series(name, "histogram", "_bucket")[:-1] + f', le="{bound}"}}'
    return over("sum", (), f"rate({bucket}[{RANGE}])", [name]) / over(
        "sum", (), f"rate({series(name, 'histogram', '_count')}[{RANGE}])", [name])


def workers_by(name, label):
    """Workers by a label. Every router has a series of each worker, so a worker counts once."""
    each = gauge("max", name, "worker", label)
    return over("sum", (label,), each.text, each.names)


def busiest(name):
    """The busiest worker's gauge over the mean. Routers that share all report the load of all of them."""
    each = gauge("max", name, "worker").text
    return Query(f"max({each}) / avg({each})", [name])


def ratio(part, whole, *by):
    return rate(part, *by) / rate(whole, *by)


# Rows of (title, unit, {legend: query}) panels. Units are Grafana's names.
ROWS = [
    ("Fleet", [
        ("Requests per second", "reqps", {"{{outcome}}": rate("warmroute_requests_total", "outcome")}),
        ("Workers by state", "short", {"{{state}}": workers_by("warmroute_worker_state", "state")}),
        ("Requests in flight by worker", "short", {"{{worker}}": gauge("max", "warmroute_worker_requests_active", "worker")}),
        ("KV use by worker", "percentunit", {"{{worker}}": gauge("max", "warmroute_worker_kv_use", "worker")}),
    ]),
    ("Cache hits", [
        ("Share of prompt tokens: expected, found, reachable", "percentunit", {
            "reachable: the best eligible worker held": ratio("warmroute_reachable_cached_tokens_total", "warmroute_prompt_tokens_total"),
            "expected on the chosen worker": ratio("warmroute_predicted_cached_tokens_total", "warmroute_prompt_tokens_total"),
            "found by the engine": ratio("warmroute_cached_tokens_total", "warmroute_prompt_tokens_total"),
        }),
        ("Found by worker", "percentunit", {"{{worker}}": ratio("warmroute_cached_tokens_total", "warmroute_prompt_tokens_total", "worker")}),
        ("Stale and missed", "percentunit", {
            "stale: expected and not found": ratio("warmroute_stale_tokens_total", "warmroute_predicted_cached_tokens_total"),
            "missed: found and not expected": ratio("warmroute_missed_tokens_total", "warmroute_cached_tokens_total"),
        }),
        ("Reasons of decisions", "reqps", {"{{policy}}: {{reason}}": rate("warmroute_decisions_total", "policy", "reason")}),
    ]),
    ("Latency", [
        ("Time to first token", "s", {f"p{share * 100:g}": quantile(share, "warmroute_time_to_first_token_seconds") for share in (0.5, 0.95, 0.99)}),
        ("TTFT: observed over expected, by worker", "short", {
            "{{worker}}": ratio("warmroute_observed_ttft_seconds_total", "warmroute_predicted_ttft_seconds_total", "worker")}),
        ("First tokens within 1.5 times the expected time", "percentunit", {"share": within("warmroute_ttft_prediction_ratio", "1.5")}),
        ("Whole request", "s", {f"p{share * 100:g}": quantile(share, "warmroute_request_seconds") for share in (0.5, 0.95, 0.99)}),
    ]),
    ("Load and saturation", [
        ("Work ahead of a new prompt", "s", {"{{model}}": gauge("max", "warmroute_saturation_seconds", "model")}),
        ("Load spread: busiest worker over the mean", "short", {"in flight": busiest("warmroute_worker_requests_active")}),
        ("Queue at the gateway", "short", {
            "{{priority}}": gauge("sum", "warmroute_queue_waiting", "priority"),
            "awaiting a worker": gauge("sum", "warmroute_requests_awaiting_worker"),
        }),
        ("Queue in the engines", "short", {"{{worker}}": gauge("max", "warmroute_worker_waiting", "worker")}),
    ]),
    ("Errors", [
        ("Failed and cut requests by worker", "reqps", {
            "{{worker}} {{outcome}}": rate("warmroute_requests_total", "worker", "outcome", outcome="failed|server_error|cut")}),
        ("Refusals", "reqps", {"{{reason}}": rate("warmroute_refusals_total", "reason")}),
        ("Retries", "reqps", {"retried": rate("warmroute_retries_total"), "denied": rate("warmroute_retries_denied_total")}),
        ("Breakers, ejections, backpressure", "reqps", {
            "breakers opened": rate("warmroute_worker_breaker_openings_total"),
            "workers ejected": rate("warmroute_worker_ejections_total"),
            "asked for a pause": rate("warmroute_worker_backpressure_total"),
        }),
    ]),
    ("Tenants and shadow policies", [
        ("Prompt tokens per second by API key", "short", {"{{tenant}}": rate("warmroute_tenant_prompt_tokens_total", "tenant")}),
        ("Output tokens per second by API key", "short", {"{{tenant}}": rate("warmroute_tenant_output_tokens_total", "tenant")}),
        ("Share of prompt tokens cached by API key", "percentunit", {
            "{{tenant}}": ratio("warmroute_tenant_cached_tokens_total", "warmroute_tenant_prompt_tokens_total", "tenant")}),
        ("Shadows: expected TTFT", "s", {
            "{{policy}}": ratio("warmroute_shadow_predicted_ttft_seconds_total", "warmroute_shadow_decisions_total", "policy")}),
    ]),
    ("Routers", [
        ("Requests per second by router", "reqps", {"{{instance}}": rate("warmroute_decisions_total", "instance")}),
        ("Routers that each router hears", "short", {"{{instance}}": gauge("max", "warmroute_peers", "instance")}),
        ("Age of peers' state", "s", {"{{instance}} of {{peer}}": gauge("max", "warmroute_peer_silence_seconds", "instance", "peer")}),
        ("Index memory by router", "bytes", {"{{instance}}": gauge("max", "warmroute_index_bytes", "instance")}),
    ]),
]
