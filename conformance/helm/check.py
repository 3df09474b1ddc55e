"""Checks the chart. Every check is a function; all run, and each failure says what is wrong.

See `run`.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

from schemas import schema_of

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CHART = ROOT / "deploy/helm/warmroute"
PLAIN = ROOT / "deploy/kubernetes"
VALUES = sorted((HERE / "values").glob("*.yaml"))
RELEASE = "warmroute"

# Plain manifests, each from FILE.values.yaml.
MANIFESTS = ["gateway", "picker"]

# A scaler and a pool without an error of their own.
SCALED = "engineScaler.enabled=true,engineScaler.target.name=vllm,engineScaler.prometheus=http://p"
POOL = "discovery.selector=null,picker.enabled=true,picker.pools[0].name=llama"

# The least that has to be set.
LEAST = ("--set", "discovery.selector.app=vllm")

# Values that must be refused, and what the error must say.
REFUSED = [
    ("replica=3", "replica"),
    ("replicas=many", "replicas"),
    ("image.pullPolicy=Sometimes", "pullPolicy"),
    ("discovery.pool=llama", "exactly one of selector, service and pool"),
    ("discovery.selector=null", "exactly one of selector, service and pool"),
    ("discovery.port=Not_A_Port", "port"),
    ("apiKeys.secret=keys", "apiKeys"),
    ("engineScaler.enabled=true", "engineScaler.target.name"),
    ("kind=StatefulSet", "kind"),
    ("kind=DaemonSet,autoscaling.enabled=true", "one router on each node"),
    ("engineScaler.kind=VPA", "engineScaler"),
    ("picker.feedback=always", "feedback"),
    ("picker.fallbacks=4", "fallbacks"),
    ("picker.pools[0].port=9003", "name"),
    ("picker.pools[0].name=llama,picker.pools[0].create=true", "matchLabels"),
    ("picker.pools[0].name=llama,picker.pools[0].targetPorts[0]=0", "targetPorts"),
    ("picker.enabled=true,picker.pools[0].name=llama", "exactly one of selector, service and pool"),
    ("discovery.selector=null,discovery.pool=llama,discovery.allNamespaces=true", "several namespaces may have a pool of one name"),
    ("discovery.selector=null,discovery.namespaces[0]=engines,picker.enabled=true,picker.pools[0].name=llama,"
     "picker.pools[0].create=true,picker.pools[0].matchLabels.app=x,picker.pools[0].targetPorts[0]=8000",
     "discovery.namespaces leaves out"),
    ("service.internalTrafficPolicy=Near", "internalTrafficPolicy"),
    ("monitoring.podMonitor.interval=often", "interval"),
    ("monitoring.dashboard.enabled=maybe", "dashboard"),
    (f"{SCALED},engineScaler.minReplicas=0", "set wakeTimeoutSeconds"),
    (f"{SCALED},engineScaler.minReplicas=0,engineScaler.kind=HPA,wakeTimeoutSeconds=60", "does not scale to zero"),
    (f"{SCALED},engineScaler.minReplicas=9", "minReplicas is 9 and maxReplicas 8"),
    ("autoscaling.enabled=true,autoscaling.maxReplicas=1", "minReplicas is 2 and maxReplicas 1"),
    ("picker.enabled=true,picker.port=30000", "port 30000 is used twice: by the client listener"),
    ("picker.enabled=true,picker.port=7946,sharing.existingSecret=s", "by the mesh"),
    (f"{POOL},picker.pools[0].port=9002", "port 9002 is used twice"),
    (f"{POOL},picker.pools[0].port=9003,picker.pools[1].name=qwen,picker.pools[1].port=9003", "port 9003 is used twice"),
    (f"{POOL},picker.pools[1].name=llama", "the pool llama is there twice"),
    ("picker.pools[0].name=llama", "no effect without picker.enabled"),
    (f"{POOL},discovery.enabled=false", "set discovery.enabled"),
    ("service.enabled=false", "neither clients nor proxies"),
    ("discovery.selector=null,discovery.pool=llama,discovery.namespaces={a,b}", "several namespaces may have a pool of one name"),
    ("discovery.allNamespaces=true,discovery.namespaces[0]=a", "not both"),
    ("monitoring.podMonitor.enabled=true,monitoring.serviceMonitor.enabled=true", "twice"),
    ("extraArgs[0]=--port=8080", "the chart sets --port itself"),
    ("extraArgs[0]=--picker-host=::,picker.enabled=true", "the chart sets --picker-host itself"),
    ("listenAddress=localhost", "listenAddress"),
    ("discovery.selector=null,discovery.pool=llama,discovery.port=8000", "targetPorts"),
    ("extraVolumes[0].name=tls", "a volume named tls itself"),
    ("extraVolumes[0].name=Tokens", "name"),
    ("engineScaler.prometheus=p", "prometheus"),
    ("resources.limits.memory=lots", "memory"),
    ("discovery.selector.app=x # y", "app"),
    ("priorityClassName=Not A Name", "priorityClassName"),
]

# The same, for values that are no text.
REFUSED_JSON = [
    ('podLabels={"app.kubernetes.io/name":"x"}', "podLabels"),
    ('monitoring.podMonitor.labels={"helm.sh/chart":"x"}', "labels"),
    ('topologySpreadConstraints=[{"maxSkew":1,"topologyKey":"k","whenUnsatisfiable":"DoNotSchedule","labelSelector":{}}]',
     "labelSelector"),
    ("tolerations=[1]", "tolerations"),
    ('networkPolicy.clientsFrom=["x"]', "clientsFrom"),
    ('networkPolicy.proxiesFrom=[{"pods":{}}]', "proxiesFrom"),
    ('affinity={"pods":{}}', "nodeAffinity"),
    ('imagePullSecrets=["pull"]', "imagePullSecrets"),
]

# Names of releases that would give names that Services cannot have.
REFUSED_NAMES = ["1a", "a.b"]

# In the place of a service account.
KUBECONFIG = {
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "default"}}],
    "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
}

PODS, SLICES, POOLS = (
    ("", "pods"), ("discovery.k8s.io", "endpointslices"), ("inference.networking.k8s.io", "inferencepools"))

# The rights that each set of values may ask for, and no others.
RIGHTS = {
    "both": {("Role", "default"): {PODS}},
    "daemonset": {("Role", "default"): {PODS}},
    "default": {("Role", "default"): {PODS}},
    "full": {("Role", "engines"): {PODS}, ("Role", "more-engines"): {PODS}},
    "hpa": {("Role", "default"): {PODS}},
    "ipv6": {("Role", "default"): {PODS}},
    "picker": {("Role", "default"): {PODS, POOLS}},
    "plain gateway": {("Role", "default"): {PODS}},
    "plain picker": {("Role", "default"): {PODS, POOLS}},
    "pool": {("Role", "default"): {PODS, POOLS}},
    "service": {("ClusterRole", None): {SLICES}},
    "static": {},
}


def helm(*args):
    return subprocess.run(["helm", *args], capture_output=True, text=True)


def render(*args):
    done = helm("template", RELEASE, str(CHART), "--namespace", "default", *args)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def objects(text):
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(documents, kind):
    return [document for document in documents if document["kind"] == kind]


def workload(documents):
    """The Deployment or DaemonSet of the routers."""
    (found,) = of_kind(documents, "Deployment") + of_kind(documents, "DaemonSet")
    return found


def plain_text(manifest):
    """The chart without traces of helm, for kubectl."""
    text = render("-f", str(PLAIN / f"{manifest}.values.yaml"))
    traces = ("# Source:", "helm.sh/chart:", "app.kubernetes.io/managed-by:")
    lines = [line for line in text.splitlines() if not line.strip().startswith(traces)]
    head = f"# Written by conformance/helm/run --write from deploy/helm/warmroute and {manifest}.values.yaml. Do not edit.\n"
    return head + "\n".join(lines).strip() + "\n"


def all_renderings():
    yield "default", objects(render(*LEAST))
    for manifest in MANIFESTS:
        yield f"plain {manifest}", objects(plain_text(manifest))
    for file in VALUES:
        yield file.stem, objects(render("-f", str(file)))


def lint(_):
    for file in [None, *VALUES]:
        done = helm("lint", str(CHART), "--strict", *(["-f", str(file)] if file else LEAST))
        if done.returncode:
            yield f"helm lint with {file}: {done.stdout}{done.stderr}"


def schemas(renderings):
    for name, documents in renderings:
        for document in documents:
            try:
                if schema := schema_of(document):
                    jsonschema.validate(document, schema)
                else:
                    kubernetes_validate.validate(document, "1.37.0", strict=True)
            except Exception as error:
                yield f"{name}: {document['kind']} {document['metadata']['name']}: {str(error)[:400]}"


def wrong_objects_are_refused(renderings):
    """The schemas of other projects' kinds can fail: an object with one field more, or of another type, is refused."""
    seen = {}
    for _, documents in renderings:
        seen |= {document["kind"]: document for document in documents if schema_of(document)}
    if sorted(seen) != ["InferencePool", "PodMonitor", "ScaledObject", "ServiceMonitor"]:
        yield f"the values render only {sorted(seen)}"
    for kind, document in seen.items():
        for change in ({"unknown": 1}, {next(iter(document["spec"])): 7}):
            wrong = document | {"spec": document["spec"] | change}
            if jsonschema.Draft202012Validator(schema_of(document)).is_valid(wrong):
                yield f"{kind} with {change} is accepted"


def values_are_documented(_):
    """Every value has a line of values.yaml, and values.schema.json knows every value."""
    values, schema = yaml.safe_load((CHART / "values.yaml").read_text()), json.loads((CHART / "values.schema.json").read_text())

    def compare(values, schema, path):
        known = schema.get("properties")
        if not known or not isinstance(values, dict):
            return
        for key in values.keys() ^ known.keys() - {"global", "claims"}:
            yield f"{path}{key} is only in {'values.yaml' if key in values else 'values.schema.json'}"
        for key in values.keys() & known.keys():
            yield from compare(values[key], known[key], f"{path}{key}.")

    yield from compare(values, schema, "")
    text = (CHART / "values.yaml").read_text()
    for key in schema["properties"]["picker"]["properties"]["pools"]["items"]["properties"]:
        if f"# {key}: " not in text:
            yield f"picker.pools[].{key} is not described in values.yaml"


def pools_are_wired(renderings):
    """An InferencePool names the picker's Service at the port that the binary gives to that pool."""
    for name, documents in renderings:
        args = workload(documents)["spec"]["template"]["spec"]["containers"][0]["args"]
        own = dict(flag.split("=", 1)[1].split("=") for flag in args if flag.startswith("--picker-pools="))
        common = next((flag.split("=")[1] for flag in args if flag.startswith("--picker-port=")), None)
        watched = next((flag.split("=")[1].split(",") for flag in args if flag.startswith("--service-discovery-pool=")), [])
        for pool in of_kind(documents, "InferencePool"):
            reference, pool_name = pool["spec"]["endpointPickerRef"], pool["metadata"]["name"]
            services = [service for service in of_kind(documents, "Service") if service["metadata"]["name"] == reference["name"]]
            ports = {port["port"]: port for service in services for port in service["spec"]["ports"]}
            if str(reference["port"]["number"]) != own.get(pool_name, common):
                yield f"{name}: the pool {pool_name} asks port {reference['port']['number']}"
            if ports.get(reference["port"]["number"], {}).get("appProtocol") != "kubernetes.io/h2c":
                yield f"{name}: {reference['name']} has no HTTP/2 port {reference['port']['number']}"
            if pool_name not in watched:
                yield f"{name}: the pods of the pool {pool_name} are not watched"
        if bool(own or common) != any(service["metadata"]["name"].endswith("-picker") for service in of_kind(documents, "Service")):
            yield f"{name}: the picker and its Service do not go together"


def replicas_overlap(renderings):
    """A rollout starts a router before it stops one, and a stopping router accepts until proxies know."""
    for name, documents in renderings:
        spec = workload(documents)["spec"]
        rolling = (spec.get("strategy") or spec["updateStrategy"])["rollingUpdate"]
        if rolling != {"maxUnavailable": 0, "maxSurge": 1}:
            yield f"{name}: {rolling}"
        container = spec["template"]["spec"]["containers"][0]
        if "readinessProbe" not in container or not container["lifecycle"]["preStop"]["sleep"]["seconds"]:
            yield f"{name}: no readiness probe, or no pause before the stop"


def wrong_values_are_refused(_):
    refused = [((*LEAST, "--set", values), word) for values, word in REFUSED]
    refused += [((*LEAST, "--set-json", values), word) for values, word in REFUSED_JSON]
    refused.append(((), "exactly one of selector, service and pool"))
    for values, word in refused:
        done = helm("template", RELEASE, str(CHART), *values)
        if done.returncode == 0:
            yield f"{values} is accepted"
        elif word not in done.stderr:
            yield f"{values}: the error does not say `{word}`: {done.stderr}"
    for name in REFUSED_NAMES:
        if "names of Services" not in (done := helm("template", name, str(CHART), *LEAST)).stderr:
            yield f"a release with the name {name}: {done.stderr or 'accepted'}"


def selectors_are_not_merged(_):
    """A file of values replaces the selector, and does not add to one that the chart brings."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as values:
        values.write("discovery: { selector: { team: llm } }\n")
        values.flush()
        args = workload(objects(render("-f", values.name)))["spec"]["template"]["spec"]["containers"][0]["args"]
    if (found := [flag for flag in args if flag.startswith("--selector")]) != ["--selector=team=llm"]:
        yield f"the flags are {found}"


def pickers_without_workers_stay_in_their_service(renderings):
    """The answer for no ready worker is the picker's, so its readiness does not depend on workers."""
    for name, documents in renderings:
        container = workload(documents)["spec"]["template"]["spec"]["containers"][0]
        picker = next((int(flag.split("=")[1]) for flag in container["args"] if flag.startswith("--picker-port=")), None)
        expected = {"grpc": {"port": picker, "service": "readiness"}} if picker else {"httpGet": {"path": "/readyz", "port": "admin"}}
        if not expected.items() <= container["readinessProbe"].items():
            yield f"{name}: the readiness probe is {container['readinessProbe']}"


def rights_are_least(renderings):
    for name, documents in renderings:
        found = {}
        for role in of_kind(documents, "Role") + of_kind(documents, "ClusterRole"):
            rules = role["rules"]
            if any(rule["verbs"] != ["list", "watch"] for rule in rules):
                yield f"{name}: a role has more than list and watch"
            args = workload(documents)["spec"]["template"]["spec"]["containers"][0]["args"]
            pools = next((flag.split("=")[1].split(",") for flag in args if flag.startswith("--service-discovery-pool=")), None)
            if [rule["resourceNames"] for rule in rules if rule["resources"] == ["inferencepools"]] != [pools] * bool(pools):
                yield f"{name}: a role is for other pools than {pools}"
            place = (role["kind"], role["metadata"].get("namespace"))
            found[place] = {(group, resource) for rule in rules for group in rule["apiGroups"]
                            for resource in rule["resources"]}
        if found != RIGHTS[name]:
            yield f"{name}: the roles are {found}, expected {RIGHTS[name]}"
        bindings = of_kind(documents, "RoleBinding") + of_kind(documents, "ClusterRoleBinding")
        accounts = {workload(documents)["spec"]["template"]["spec"]["serviceAccountName"]}
        if any(subject["name"] not in accounts for binding in bindings for subject in binding["subjects"]):
            yield f"{name}: a binding is for another account than the pods'"


def parts_fit_together(renderings):
    for name, documents in renderings:
        pod = workload(documents)["spec"]["template"]
        labels, container = pod["metadata"]["labels"], pod["spec"]["containers"][0]
        ports = {port["name"] for port in container["ports"]}
        for service in of_kind(documents, "Service"):
            if not service["spec"]["selector"].items() <= labels.items():
                yield f"{name}: Service {service['metadata']['name']} selects other pods"
            if not {port["targetPort"] for port in service["spec"]["ports"]} <= ports:
                yield f"{name}: Service {service['metadata']['name']} has a port that no container has"
        for policy in of_kind(documents, "NetworkPolicy"):
            used = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
            if used != ports:
                yield f"{name}: the NetworkPolicy opens {used}, and the container has {ports}"
        for monitor in of_kind(documents, "PodMonitor"):
            if not {end["port"] for end in monitor["spec"]["podMetricsEndpoints"]} <= ports:
                yield f"{name}: the PodMonitor names a port that no container has"
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])}
        if {mount["name"] for mount in container.get("volumeMounts", [])} != volumes:
            yield f"{name}: the volumes are {volumes}, and others are mounted"
        if not pod["spec"]["securityContext"]["runAsNonRoot"] or not container["securityContext"]["readOnlyRootFilesystem"]:
            yield f"{name}: the container runs as root, or with a root that it may write"
        mounts = tuple(mount["mountPath"] for mount in container.get("volumeMounts", []))
        for flag in container["args"]:
            path = flag.partition("=")[2]
            if path.startswith("/") and not path.startswith(mounts):
                yield f"{name}: {flag} is not in a mounted folder"
        for volume in pod["spec"].get("volumes", []):
            if "secret" in volume and volume["secret"].get("defaultMode", 0o644) & 0o007:
                yield f"{name}: everyone in the container can read the secret {volume['name']}"
        grace = pod["spec"]["terminationGracePeriodSeconds"]
        drain = next(int(flag.partition("=")[2]) for flag in container["args"] if flag.startswith("--drain-timeout-secs"))
        if grace < drain + 10:
            yield f"{name}: pods are killed after {grace} s, and requests may take {drain} s"


def dashboard_is_rendered(renderings):
    committed = json.loads((CHART / "dashboards/warmroute.json").read_text())
    found = {name: [config for config in of_kind(documents, "ConfigMap") if "grafana_dashboard" in config["metadata"]["labels"]]
             for name, documents in renderings}
    if any(configs for name, configs in found.items() if name != "full"):
        yield "a dashboard that was not asked for"
    if [json.loads(config["data"]["warmroute.json"]) for config in found["full"]] != [committed]:
        yield "full: the ConfigMap is not the committed dashboard"


def flags_exist(renderings, binary):
    known = subprocess.run([binary, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"--[a-z0-9-]+", known))
    for name, documents in renderings:
        for flag in workload(documents)["spec"]["template"]["spec"]["containers"][0]["args"][1:]:
            if flag.partition("=")[0] not in known:
                yield f"{name}: `warmroute serve` has no flag {flag}"


def args_are_accepted(renderings, binary):
    """`warmroute check` takes the container's arguments, with files in the place of Secrets and an address for POD_IP."""
    for name, documents in renderings:
        with tempfile.TemporaryDirectory() as folder:
            args = []
            for flag in workload(documents)["spec"]["template"]["spec"]["containers"][0]["args"][1:]:
                option, _, value = flag.partition("=")
                if option in ("--tls-cert", "--tls-key"):
                    continue
                if value.startswith("/models"):
                    continue
                if value.startswith("/etc/warmroute/"):
                    file = Path(folder, value.removeprefix("/etc/warmroute/").replace("/", "-"))
                    maps = [config["data"].get("warmroute.toml") for config in of_kind(documents, "ConfigMap")]
                    text = next(filter(None, maps), "") if option == "--config" else "a-key-of-some-length\n"
                    file.write_text(text)
                    file.chmod(0o600)
                    flag = f"{option}={file}"
                args.append(flag)
            address = "fd00::1" if "--admin-host=::" in args else "10.0.0.1"
            args = [flag.replace("$(POD_IP)", address) for flag in args]
            config = Path(folder, "kubeconfig")
            config.write_text(json.dumps(KUBECONFIG))
            environment = {"PATH": os.environ["PATH"], "KUBECONFIG": str(config)}
            done = subprocess.run([binary, "check", *args], capture_output=True, text=True, env=environment)
            if done.returncode:
                yield f"{name}: `warmroute check` refuses {args}: {done.stderr}"


def metrics_exist(renderings):
    documented = (ROOT / "docs/metrics.md").read_text()
    for name, documents in renderings:
        for scaler in of_kind(documents, "ScaledObject") + of_kind(documents, "HorizontalPodAutoscaler"):
            for metric in re.findall(r"warmroute_[a-z_]+", yaml.dump(scaler)):
                if f"`{metric}`" not in documented:
                    yield f"{name}: the {scaler['kind']} uses {metric}, which docs/metrics.md does not have"


def engines_are_counted_once(renderings):
    """Each router that shares reports the requests of all of them, so KEDA's query takes one report for each worker."""
    for name, documents in renderings:
        shares = "--share=mesh" in workload(documents)["spec"]["template"]["spec"]["containers"][0]["args"]
        count = "sum(max by (worker) (%s))" if shares else "sum(%s)"
        own = 'namespace="default",pod=~"warmroute-[a-z0-9]+(-[a-z0-9]+)?"'
        expected = count % f"warmroute_worker_requests_active{{{own}}}"
        for scaler in of_kind(documents, "ScaledObject"):
            queries = [trigger["metadata"]["query"] for trigger in scaler["spec"]["triggers"]]
            if not queries[0].startswith(expected + " + "):
                yield f"{name}: the query is {queries[0]}, expected {expected}"
            for query in queries:
                if query.count("{" + own + "}") != query.count("warmroute_"):
                    yield f"{name}: another release of the namespace counts too: {query}"


def pods_of_a_release_are_told_apart(_):
    """The pattern of the queries finds the pods of a Deployment or DaemonSet of this name, and not another release's."""
    pattern = r"warmroute-[a-z0-9]+(-[a-z0-9]+)?"
    for pod, is_own in [("warmroute-7d9f6c5b8-x2k4q", True), ("warmroute-x2k4q", True), ("warmroute-b-7d9f6c5b8-x2k4q", False),
                        ("llama-warmroute-7d9f6c5b8-x2k4q", False)]:
        if bool(re.fullmatch(pattern, pod)) != is_own:
            yield pod
    for monitored in ("true", "false"):
        scaler = of_kind(objects(render(*LEAST, "--set", f"{SCALED},engineScaler.kind=HPA,monitoring.podMonitor.enabled={monitored}")),
                         "HorizontalPodAutoscaler")[0]
        selectors = [entry["external"]["metric"]["selector"]["matchLabels"] for entry in scaler["spec"]["metrics"]]
        expected = {"namespace": "default"} | ({"helm_release": "warmroute"} if monitored == "true" else {})
        if any(selector != expected for selector in selectors):
            yield f"the HPA selects {selectors}"


def adapter_rules_serve_the_hpa(renderings):
    """docs/monitoring.md has a rule of prometheus-adapter for each external metric, which gives one value."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/monitoring.md").read_text(), re.DOTALL)
    values = [block for block in map(yaml.safe_load, blocks) if isinstance(block, dict) and "rules" in block]
    rules = {re.match(r"\w+", rule["seriesQuery"])[0]: rule for block in values for rule in block["rules"]["external"]}
    for name, documents in renderings:
        for scaler in of_kind(documents, "HorizontalPodAutoscaler"):
            for metric in (entry["external"]["metric"]["name"] for entry in scaler["spec"]["metrics"] if "external" in entry):
                over_routers = "max" if metric.endswith("_seconds") else "sum"
                found = rules.get(metric, {}).get("metricsQuery")
                if found != over_routers + "(<<.Series>>{<<.LabelMatchers>>})":
                    yield f"{name}: the documented rule for {metric} is {found}, expected the {over_routers} of all series"


def plain_manifests_are_current(_):
    for manifest in MANIFESTS:
        file = PLAIN / f"{manifest}.yaml"
        if not file.exists() or file.read_text() != plain_text(manifest):
            yield f"{file.relative_to(ROOT)} differs from the chart: run conformance/helm/run --write"
    file = PLAIN / "gateway.yaml"
    built = subprocess.run(["kubectl", "kustomize", str(PLAIN)], capture_output=True, text=True)
    name = lambda document: (document["kind"], document["metadata"]["name"])
    if built.returncode:
        yield f"kubectl kustomize: {built.stderr}"
    elif sorted(map(name, objects(built.stdout))) != sorted(map(name, objects(file.read_text()))):
        yield "kubectl kustomize gives other objects"


def main():
    if sys.argv[1:] == ["--write"]:
        for manifest in MANIFESTS:
            (PLAIN / f"{manifest}.yaml").write_text(plain_text(manifest))
        return
    binary = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "target/release/warmroute")
    renderings = list(all_renderings())
    with_binary = lambda renderings: flags_exist(renderings, binary)
    with_binary.__name__ = "flags_exist"
    checked_args = lambda renderings: args_are_accepted(renderings, binary)
    checked_args.__name__ = "args_are_accepted"
    checks = [lint, schemas, wrong_objects_are_refused, wrong_values_are_refused, values_are_documented, rights_are_least,
              parts_fit_together, pools_are_wired, selectors_are_not_merged, pickers_without_workers_stay_in_their_service,
              replicas_overlap, with_binary, checked_args, metrics_exist, engines_are_counted_once, pods_of_a_release_are_told_apart, adapter_rules_serve_the_hpa, dashboard_is_rendered, plain_manifests_are_current]
    failures = 0
    for check in checks:
        found = list(check(renderings))
        failures += len(found)
        print("ok    " if not found else "FAILED", check.__name__.replace("_", " "))
        for failure in found:
            print("      ", failure)
    count = sum(len(documents) for _, documents in renderings)
    foreign = sum(bool(schema_of(document)) for _, documents in renderings for document in documents)
    print(f"{count} objects of {len(renderings)} renderings, {foreign} of them of other projects' kinds")
    raise SystemExit(failures > 0)


main()
