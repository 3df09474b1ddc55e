"""The admin listener, as an operator's tools read it."""

from admin import eventually


def test_healthz_and_readyz_say_yes(admin):
    assert admin.get("/healthz").status_code == 200
    assert admin.get("/readyz").status_code == 200


def test_every_worker_is_ready_and_described(admin, model):
    workers = admin.workers()
    assert len({worker["url"] for worker in workers}) == 8
    for worker in workers:
        assert (worker["state"], worker["model"], worker["rank"]) == ("ready", model, None)
        assert worker["view"] in ("reported", "presumed", "uncertain")
        assert worker["in_flight"] >= 0


def test_metrics_parse_and_count_a_request_with_its_worker(admin, client, model):
    before = admin.total("warmroute_requests_total", outcome="ok")
    messages = [{"role": "user", "content": "Count me."}]
    client.chat.completions.create(model=model, messages=messages, max_tokens=1)
    assert eventually(lambda: admin.total("warmroute_requests_total", outcome="ok") == before + 1)
    urls = {worker["url"] for worker in admin.workers()}
    counted = {s.labels["worker"] for s in admin.samples() if s.name == "warmroute_requests_total"}
    assert counted <= urls


def test_metrics_count_a_refusal_with_its_reason(admin, http):
    before = admin.total("warmroute_refusals_total", reason="invalid_json")
    http.post("/v1/chat/completions", content=b"{")
    assert admin.total("warmroute_refusals_total", reason="invalid_json") == before + 1


def test_metrics_say_which_format_they_are_in(admin):
    kind = admin.get("/metrics").headers["content-type"]
    assert kind.startswith(("application/openmetrics-text", "text/plain"))


def test_config_shows_what_is_in_force(admin):
    config = admin.config()
    assert config["routing"]["policy"] == "expected_ttft"
    assert config["requests"]["max-payload-size"] > 0


def test_an_unknown_admin_path_is_not_found(admin):
    assert admin.get("/no-such-page").status_code == 404


def test_clients_cannot_reach_the_admin_paths(http):
    assert http.get("/workers").status_code == 404
    assert http.get("/config").status_code == 404
