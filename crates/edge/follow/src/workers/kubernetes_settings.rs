//! The sources of workers in Kubernetes, as options name them.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use warmroute_discovery::{KubernetesAccess, KubernetesSource, KubernetesTarget, WorkerPort};

/// All namespaces.
const ALL: &str = "*";

/// Which objects list the workers, and where. One of `selector`, `service` and `pools` is given.
#[derive(Clone, Debug, Default)]
pub struct KubernetesSettings {
    /// Whether workers are looked for in Kubernetes.
    pub is_on: bool,
    /// Labels of pods.
    pub selector: Option<Vec<String>>,
    /// The name of the Service whose endpoints are the workers.
    pub service: Option<String>,
    /// InferencePools, as `NAME` or `NAMESPACE/NAME`.
    pub pools: Option<Vec<String>>,
    /// The workers' port: a number or a name.
    pub port: Option<String>,
    /// Namespaces; `*` is all of them. Without any, the router's own.
    pub namespaces: Option<Vec<String>>,
    /// How to reach the cluster, if not as a pod in it.
    pub kubeconfig: Option<PathBuf>,
}

impl KubernetesSettings {
    /// The sources: one for each namespace. Each port has `ranks`.
    pub(super) fn sources(&self, ranks: Option<u16>) -> anyhow::Result<Vec<KubernetesSource>> {
        if !self.is_on {
            self.check_unused()?;
            return Ok(Vec::new());
        }
        let targets = self.targets()?;
        let port = self.port.as_deref().map(str::parse::<WorkerPort>);
        let port = port.transpose().context("service-discovery-port")?;
        ensure!(
            port.is_none() || self.pools.is_none(),
            "service-discovery-port has no effect with service-discovery-pool: workers listen on the targetPorts of \
             their InferencePool; remove it"
        );
        let namespaces = self.namespaces.clone().unwrap_or_default();
        for namespace in namespaces.iter().filter(|namespace| *namespace != ALL) {
            check_name(namespace).context("service-discovery-namespace")?;
        }
        if namespaces.len() > 1 || namespaces.iter().any(|namespace| namespace == ALL) {
            targets.iter().try_for_each(|target| target.check_in(&namespaces))?;
        }
        let access = KubernetesAccess::find(self.kubeconfig.as_deref()).context("kubeconfig")?;
        let namespaces: Vec<Option<String>> = match namespaces.as_slice() {
            [] => vec![Some(access.namespace().to_owned())],
            some if some.iter().any(|namespace| namespace == ALL) => vec![None],
            some => some.iter().cloned().map(Some).collect(),
        };
        let source = |target: &Target, namespace: &Option<String>| KubernetesSource {
            access: access.clone(),
            target: target.target.clone(),
            namespace: target.namespace.clone().or_else(|| namespace.clone()),
            port: port.clone(),
            ranks,
            pool: target.pool.clone(),
        };
        let places = |target: &Target| if target.namespace.is_some() { 1 } else { namespaces.len() };
        let of_target =
            |target| namespaces.iter().take(places(target)).map(move |namespace| source(target, namespace));
        Ok(targets.iter().flat_map(of_target).collect())
    }

    fn check_unused(&self) -> anyhow::Result<()> {
        let used = [
            ("selector", self.selector.is_some()),
            ("service-discovery-service", self.service.is_some()),
            ("service-discovery-pool", self.pools.is_some()),
            ("service-discovery-port", self.port.is_some()),
            ("service-discovery-namespace", self.namespaces.is_some()),
            ("kubeconfig", self.kubeconfig.is_some()),
        ];
        let unused = used.iter().find(|(_, is_set)| *is_set);
        unused.map_or(Ok(()), |(name, _)| anyhow::bail!("{name} has no effect without service-discovery"))
    }

    fn targets(&self) -> anyhow::Result<Vec<Target>> {
        let names = "selector, service-discovery-service";
        match (&self.selector, &self.service, &self.pools) {
            (Some(labels), None, None) => {
                let labels: Vec<&str> = labels.iter().map(|label| label.trim()).collect();
                ensure!(
                    !labels.is_empty() && !labels.contains(&""),
                    "selector: an empty selector would match every pod"
                );
                Ok(vec![Target::plain(KubernetesTarget::Pods { selector: labels.join(",") })])
            }
            (None, Some(name), None) => {
                check_name(name).context("service-discovery-service")?;
                Ok(vec![Target::plain(KubernetesTarget::Service { name: name.clone() })])
            }
            (None, None, Some(pools)) => {
                ensure!(!pools.is_empty(), "service-discovery-pool: the list is empty");
                pools
                    .iter()
                    .map(|pool| Target::pool(pool))
                    .collect::<Result<_, _>>()
                    .context("service-discovery-pool")
            }
            (None, None, None) => anyhow::bail!("service-discovery: set {names} or service-discovery-pool"),
            _ => anyhow::bail!("service-discovery: set only one of {names} and service-discovery-pool"),
        }
    }
}

/// What lists workers, its namespace if it names one, and the name of its pool.
struct Target {
    target: KubernetesTarget,
    namespace: Option<String>,
    pool: Option<String>,
}

impl Target {
    fn plain(target: KubernetesTarget) -> Target {
        Target { target, namespace: None, pool: None }
    }

    /// An InferencePool, as `NAME` or `NAMESPACE/NAME`.
    fn pool(text: &str) -> anyhow::Result<Target> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        namespace.map_or(Ok(()), check_name)?;
        check_name(name)?;
        Ok(Target {
            target: KubernetesTarget::Pool { name: name.to_owned() },
            namespace: namespace.map(str::to_owned),
            pool: Some(text.to_owned()),
        })
    }

    /// A pool selects pods of its own namespace only, and several namespaces may have a pool of its name.
    fn check_in(&self, namespaces: &[String]) -> anyhow::Result<()> {
        let name = self.pool.as_deref().filter(|_| self.namespace.is_none());
        name.map_or(Ok(()), |name| {
            anyhow::bail!(
                "service-discovery-pool: `{name}` may be in several namespaces with service-discovery-namespace `{}`; \
                 write NAMESPACE/{name}",
                namespaces.join(",")
            )
        })
    }
}

/// Names become parts of a path.
fn check_name(name: &str) -> anyhow::Result<()> {
    let is_valid =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let is_name =
        !name.is_empty() && name.len() <= 253 && name.bytes().all(is_valid) && !name.starts_with('.');
    ensure!(is_name, "`{name}` is not a name in Kubernetes");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(settings: KubernetesSettings) -> Vec<KubernetesSource> {
        plan(settings).unwrap()
    }

    fn list(items: &[&str]) -> Option<Vec<String>> {
        Some(items.iter().map(|item| (*item).to_owned()).collect())
    }

    fn plan(settings: KubernetesSettings) -> anyhow::Result<Vec<KubernetesSource>> {
        // Tests run at the same time: each has a file of its own.
        let thread = format!("{:?}", std::thread::current().id());
        let folder = std::env::temp_dir().join(format!("warmroute-plan-{}-{thread}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("config");
        let kubeconfig = "current-context: c\ncontexts:\n- name: c\n  context: \n    cluster: k\n    namespace: own\n\
                          clusters:\n- name: k\n  cluster:\n    server: http://127.0.0.1:1\n";
        std::fs::write(&file, kubeconfig).unwrap();
        KubernetesSettings { is_on: true, kubeconfig: Some(file), ..settings }.sources(Some(2))
    }

    #[test]
    fn a_port_is_refused_where_pools_have_their_own() {
        let (pools, port) = (list(&["llama"]), Some("8000".to_owned()));
        let refused = plan(KubernetesSettings { pools, port, ..KubernetesSettings::default() }).unwrap_err();
        assert!(refused.to_string().contains("targetPorts"), "{refused}");
    }

    #[test]
    fn the_own_namespace_is_the_default_and_a_star_is_all() {
        let found = |namespaces: Option<Vec<String>>| -> Vec<Option<String>> {
            let service = Some("llama".to_owned());
            let sources =
                planned(KubernetesSettings { service, namespaces, ..KubernetesSettings::default() });
            sources.into_iter().map(|source| source.namespace).collect()
        };
        assert_eq!(found(None), [Some("own".to_owned())]);
        assert_eq!(found(list(&["*"])), [None]);
        let several = found(list(&["a", "b"]));
        assert_eq!(several, [Some("a".to_owned()), Some("b".to_owned())]);
    }

    #[test]
    fn each_pool_is_a_source_in_its_namespace() {
        let (pools, namespaces) = (list(&["llama", "other/qwen"]), list(&["a"]));
        let found = planned(KubernetesSettings { pools, namespaces, ..KubernetesSettings::default() });
        let found: Vec<_> =
            found.into_iter().map(|source| (source.target, source.namespace, source.pool)).collect();
        let pool = |name: &str, namespace: &str, pool: &str| {
            let target = KubernetesTarget::Pool { name: name.to_owned() };
            (target, Some(namespace.to_owned()), Some(pool.to_owned()))
        };
        assert_eq!(found, [pool("llama", "a", "llama"), pool("qwen", "other", "other/qwen")]);
    }

    #[test]
    fn selectors_are_joined_and_a_port_may_be_a_number() {
        let (selector, port) = (list(&["app=vllm", "tier in (a,b)"]), Some("8000".to_owned()));
        let found = planned(KubernetesSettings { selector, port, ..KubernetesSettings::default() });
        let selector = "app=vllm,tier in (a,b)".to_owned();
        assert_eq!(found[0].target, KubernetesTarget::Pods { selector });
        assert_eq!((found[0].port.clone(), found[0].ranks), (Some(WorkerPort::Number(8000)), Some(2)));
    }
}
