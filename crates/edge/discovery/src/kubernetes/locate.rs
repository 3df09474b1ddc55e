//! Finds the API server: by a kubeconfig, or by the service account of a pod.

use std::path::{Path, PathBuf};

use super::access::{BadAccess, KubernetesAccess, Source};
use super::kubeconfig;

/// Where a pod finds its service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

impl KubernetesAccess {
    /// The named kubeconfig; otherwise the pod's service account; otherwise the user's kubeconfig.
    pub fn find(kubeconfig: Option<&Path>) -> Result<KubernetesAccess, BadAccess> {
        let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if let Some(file) = kubeconfig {
            return kubeconfig::read(&[file.to_owned()]);
        }
        if let (Some(host), Some(port)) = (env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT")) {
            return KubernetesAccess::in_pod(&host, &port, Path::new(SERVICE_ACCOUNT));
        }
        let at_home = || env("HOME").map(|home| vec![Path::new(&home).join(".kube/config")]);
        let listed = env("KUBECONFIG").map(|list| std::env::split_paths(&list).collect());
        let mut files: Vec<PathBuf> = listed.or_else(at_home).unwrap_or_default();
        files.retain(|file| file.exists());
        if files.is_empty() {
            return Err(BadAccess::Nowhere);
        }
        kubeconfig::read(&files)
    }

    fn in_pod(host: &str, port: &str, folder: &Path) -> Result<KubernetesAccess, BadAccess> {
        let bracketed = |host: &str| if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let file = folder.join("namespace");
        let namespace =
            std::fs::read_to_string(&file).map_err(|error| BadAccess::Unreadable { file, error })?;
        Ok(KubernetesAccess {
            url: format!("https://{}:{port}", bracketed(host)),
            namespace: namespace.trim().to_owned(),
            origin: folder.to_owned(),
            ca: Some(Source::File(folder.join("ca.crt"))),
            identity: None,
            token: Some(Source::File(folder.join("token"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_uses_its_service_account() {
        let folder = std::env::temp_dir().join(format!("warmroute-account-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let missing = KubernetesAccess::in_pod("10.0.0.1", "443", &folder).unwrap_err().to_string();
        assert!(missing.contains("cannot read") && missing.contains("namespace"), "{missing}");
        std::fs::write(folder.join("namespace"), "serving\n").unwrap();
        let access = KubernetesAccess::in_pod("10.0.0.1", "443", &folder).unwrap();
        assert_eq!((access.url.as_str(), access.namespace()), ("https://10.0.0.1:443", "serving"));
        let access = KubernetesAccess::in_pod("fd00::1", "6443", &folder).unwrap();
        assert_eq!(access.url, "https://[fd00::1]:6443");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
