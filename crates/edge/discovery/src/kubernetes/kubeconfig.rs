//! Reads a kubeconfig: the server and the credentials of its current context.
//!
//! Tokens, token files, client certificates and CA bundles are supported, in files or in the kubeconfig itself.
//! Credential plugins (`exec`) are not: a router that runs for months should have a service account of its own. Settings
//! that would change whom we talk to are refused and not ignored.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::access::{BadAccess, KubernetesAccess, Source};
use super::objects::null_as_empty;
use super::yaml;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Kubeconfig {
    current_context: String,
    #[serde(deserialize_with = "null_as_empty")]
    clusters: Vec<NamedCluster>,
    #[serde(deserialize_with = "null_as_empty")]
    contexts: Vec<NamedContext>,
    #[serde(deserialize_with = "null_as_empty")]
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    insecure_skip_tls_verify: bool,
    tls_server_name: Option<String>,
    proxy_url: Option<String>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
    namespace: Option<String>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default, deserialize_with = "null_as_empty")]
    user: User,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct User {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    exec: Option<serde_json::Value>,
    auth_provider: Option<serde_json::Value>,
    username: Option<String>,
}

/// Reads the current context of a file.
pub(super) fn read(file: &Path) -> Result<KubernetesAccess, BadAccess> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| BadAccess::Unreadable { file: file.to_owned(), error })?;
    access(&text, file).map_err(|why| BadAccess::Kubeconfig { file: file.to_owned(), why })
}

fn access(text: &str, file: &Path) -> Result<KubernetesAccess, String> {
    // `kubectl config view -o json` writes JSON.
    let value = match text.trim_start().starts_with('{') {
        true => serde_json::from_str(text).map_err(|error| format!("line {}: not JSON", error.line()))?,
        false => yaml::parse(text).map_err(|bad| bad.to_string())?,
    };
    // Not with serde's own text, which may quote a secret.
    let config: Kubeconfig =
        serde_json::from_value(value).map_err(|_| "it is not a kubeconfig".to_owned())?;
    let current = &config.current_context;
    let context = config.contexts.iter().find(|context| context.name == *current);
    let context = context.ok_or_else(|| format!("the current context `{current}` does not exist"))?;
    let Context { cluster, user, namespace } = &context.context;
    let cluster = config.clusters.iter().find(|named| named.name == *cluster);
    let cluster = &cluster.ok_or_else(|| format!("the context `{current}` names no cluster"))?.cluster;
    let user = config.users.iter().find(|named| named.name == *user).map(|named| &named.user);
    cluster.check()?;
    user.map_or(Ok(()), User::check)?;
    let beside = |path: &PathBuf| file.parent().map_or_else(|| path.clone(), |folder| folder.join(path));
    let source = |data: &Option<String>, path: &Option<PathBuf>| source_of(data, path, &beside);
    let mut identity = None;
    let mut token = None;
    if let Some(user) = user {
        let certificates = source(&user.client_certificate_data, &user.client_certificate)?;
        identity = match (certificates, source(&user.client_key_data, &user.client_key)?) {
            (Some(certificates), Some(key)) => Some((certificates, key)),
            (None, None) => None,
            _ => return Err("a client certificate needs its key, and a key its certificate".to_owned()),
        };
        let of_file = user.token_file.as_ref().map(|path| Source::File(beside(path)));
        token = of_file.or_else(|| user.token.as_ref().map(|token| Source::Text(token.clone().into_bytes())));
    }
    Ok(KubernetesAccess {
        url: cluster.server.trim_end_matches('/').to_owned(),
        namespace: namespace.clone().unwrap_or_else(|| "default".to_owned()),
        origin: file.to_owned(),
        ca: source(&cluster.certificate_authority_data, &cluster.certificate_authority)?,
        identity,
        token,
    })
}

/// A credential in the kubeconfig, or in a file beside it.
fn source_of(
    data: &Option<String>,
    path: &Option<PathBuf>,
    beside: &impl Fn(&PathBuf) -> PathBuf,
) -> Result<Option<Source>, String> {
    match (data, path) {
        (Some(data), _) if !data.is_empty() => {
            let decoded = STANDARD.decode(data).map_err(|_| "a credential is not valid base64".to_owned());
            Ok(Some(Source::Text(decoded?)))
        }
        (_, path) => Ok(path.as_ref().map(|path| Source::File(beside(path)))),
    }
}

impl Cluster {
    fn check(&self) -> Result<(), String> {
        let refused = |what: &str| Err(format!("{what} is not supported"));
        if !self.server.starts_with("https://") && !self.server.starts_with("http://") {
            return Err(format!("the server `{}` is not a URL", self.server));
        }
        if self.insecure_skip_tls_verify {
            return refused("insecure-skip-tls-verify; set certificate-authority instead: it");
        }
        if self.tls_server_name.is_some() {
            return refused("tls-server-name");
        }
        if self.proxy_url.is_some() {
            return refused("proxy-url");
        }
        Ok(())
    }
}

impl User {
    fn check(&self) -> Result<(), String> {
        let has_token = self.token.is_some() || self.token_file.is_some();
        let has_plugin = self.exec.is_some() || self.auth_provider.is_some() || self.username.is_some();
        let has_certificate = self.client_certificate.is_some() || self.client_certificate_data.is_some();
        if has_plugin && !has_token && !has_certificate {
            return Err(
                "the user has no token and no client certificate; credential plugins and passwords are \
                        not supported: create a token with `kubectl create token SERVICEACCOUNT`"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `kind` writes it, with shorter credentials.
    const KIND: &str = r#"apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: Y2E=
    server: https://127.0.0.1:41221
  name: kind-kind
- cluster:
    server: https://other
  name: other
contexts:
- context:
    cluster: kind-kind
    namespace: serving
    user: kind-kind
  name: kind-kind
current-context: kind-kind
kind: Config
preferences: {}
users:
- name: kind-kind
  user:
    client-certificate-data: Y2VydA==
    client-key-data: a2V5
"#;

    fn text(source: &Source) -> String {
        match source {
            Source::Text(text) => String::from_utf8(text.clone()).unwrap(),
            Source::File(file) => file.display().to_string(),
        }
    }

    #[test]
    fn client_certificates_are_read() {
        let access = access(KIND, Path::new("/home/me/.kube/config")).unwrap();
        assert_eq!((access.url.as_str(), access.namespace()), ("https://127.0.0.1:41221", "serving"));
        assert_eq!(text(access.ca.as_ref().unwrap()), "ca");
        let (certificates, key) = access.identity.as_ref().unwrap();
        assert_eq!((text(certificates), text(key)), ("cert".into(), "key".into()));
        assert!(access.token.is_none());
    }

    #[test]
    fn files_are_relative_to_the_kubeconfig_and_a_token_file_comes_first() {
        let json = r#"{"current-context":"c","contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],
            "clusters":[{"name":"k","cluster":{"server":"https://k:6443/","certificate-authority":"ca.pem"}}],
            "users":[{"name":"u","user":{"token":"t","tokenFile":"/run/token"}}]}"#;
        let access = access(json, Path::new("/etc/k/config")).unwrap();
        assert_eq!((access.url.as_str(), access.namespace()), ("https://k:6443", "default"));
        assert_eq!(text(access.ca.as_ref().unwrap()), "/etc/k/ca.pem");
        assert_eq!(text(access.token.as_ref().unwrap()), "/run/token");
    }

    #[test]
    fn settings_that_cannot_be_honoured_are_refused() {
        let refused = |from: &str, to: &str| {
            let text = KIND.replace(from, to);
            assert_ne!(text, KIND);
            access(&text, Path::new("config")).unwrap_err()
        };
        for (from, to, why) in [
            ("current-context: kind-kind", "current-context: gone", "the current context `gone`"),
            ("cluster: kind-kind", "cluster: gone", "names no cluster"),
            ("server: https://127", "insecure-skip-tls-verify: true\n    server: https://127", "insecure"),
            ("server: https://127", "proxy-url: http://p\n    server: https://127", "proxy-url"),
            ("https://127.0.0.1", "127.0.0.1", "is not a URL"),
            ("    client-key-data: a2V5\n", "", "needs its key"),
            ("Y2E=", "Y2E=hush!", "not valid base64"),
            (
                "client-certificate-data: Y2VydA==\n    client-key-data: a2V5",
                "exec:\n      command: aws",
                "kubectl create token",
            ),
            ("clusters:", "clusters: [", "line 2"),
        ] {
            let error = refused(from, to);
            assert!(error.contains(why) && !error.contains("hush"), "{error}");
        }
    }
}
