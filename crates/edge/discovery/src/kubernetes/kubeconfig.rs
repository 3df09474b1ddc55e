//! Reads kubeconfigs: the server and the credentials of the current context. Several files are read as kubectl reads them: the
//! first one that has an entry counts, and paths are relative to the file that names them.
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

/// Reads the current context of files.
pub(super) fn read(files: &[PathBuf]) -> Result<KubernetesAccess, BadAccess> {
    let parse = |file: &PathBuf| {
        let text = std::fs::read_to_string(file)
            .map_err(|error| BadAccess::Unreadable { file: file.clone(), error })?;
        parse(&text).map_err(|why| BadAccess::Kubeconfig { file: file.clone(), why })
    };
    let configs: Vec<Kubeconfig> = files.iter().map(parse).collect::<Result<_, _>>()?;
    let configs: Vec<(&Path, &Kubeconfig)> = files.iter().map(PathBuf::as_path).zip(&configs).collect();
    access(&configs).map_err(|(file, why)| BadAccess::Kubeconfig { file: file.to_owned(), why })
}

fn parse(text: &str) -> Result<Kubeconfig, String> {
    // `kubectl config view -o json` writes JSON.
    let value = match text.trim_start().starts_with('{') {
        true => serde_json::from_str(text).map_err(|error| format!("line {}: not JSON", error.line()))?,
        false => yaml::parse(text).map_err(|bad| bad.to_string())?,
    };
    // Not with serde's own text, which may quote a secret.
    serde_json::from_value(value).map_err(|_| "it is not a kubeconfig".to_owned())
}

/// The credentials of a user: a client certificate with its key, and a token.
type Credentials = (Option<(Source, Source)>, Option<Source>);

/// The access that the files give together. An error names the file whose entry is wrong.
fn access<'a>(configs: &[(&'a Path, &'a Kubeconfig)]) -> Result<KubernetesAccess, (&'a Path, String)> {
    let first = configs.first().map_or(Path::new(""), |(file, _)| file);
    let named = configs.iter().find(|(_, config)| !config.current_context.is_empty());
    let (origin, current) =
        named.map_or((first, ""), |(file, config)| (*file, config.current_context.as_str()));
    let wrong = |why: String| (origin, why);
    let contexts = configs.iter().flat_map(|(_, config)| &config.contexts);
    let context = contexts.into_iter().find(|context| context.name == current);
    let context = context.ok_or_else(|| wrong(format!("the current context `{current}` does not exist")))?;
    let Context { cluster, user, namespace } = &context.context;
    let clusters =
        configs.iter().flat_map(|(file, config)| config.clusters.iter().map(move |named| (*file, named)));
    let cluster = clusters.into_iter().find(|(_, named)| named.name == *cluster);
    let (file, cluster) =
        cluster.ok_or_else(|| wrong(format!("the context `{current}` names no cluster")))?;
    let ca = cluster.cluster.check().and_then(|()| cluster.cluster.ca(file)).map_err(|why| (file, why))?;
    let users =
        configs.iter().flat_map(|(file, config)| config.users.iter().map(move |named| (*file, named)));
    let user = users.into_iter().find(|(_, named)| named.name == *user);
    let (identity, token) = match user {
        Some((file, user)) => user.user.credentials(file).map_err(|why| (file, why))?,
        None => (None, None),
    };
    Ok(KubernetesAccess {
        url: cluster.cluster.server.trim_end_matches('/').to_owned(),
        namespace: namespace.clone().unwrap_or_else(|| "default".to_owned()),
        origin: origin.to_owned(),
        ca,
        identity,
        token,
    })
}

/// A path as a kubeconfig names it, relative to that file.
fn beside(file: &Path, path: &Path) -> PathBuf {
    file.parent().map_or_else(|| path.to_owned(), |folder| folder.join(path))
}

/// A credential in the kubeconfig, or in a file beside it.
fn source_of(file: &Path, data: &Option<String>, path: &Option<PathBuf>) -> Result<Option<Source>, String> {
    match (data, path) {
        (Some(data), _) if !data.is_empty() => {
            let decoded = STANDARD.decode(data).map_err(|_| "a credential is not valid base64".to_owned());
            Ok(Some(Source::Text(decoded?)))
        }
        (_, path) => Ok(path.as_ref().map(|path| Source::File(beside(file, path)))),
    }
}

impl Cluster {
    fn ca(&self, file: &Path) -> Result<Option<Source>, String> {
        source_of(file, &self.certificate_authority_data, &self.certificate_authority)
    }

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
    fn credentials(&self, file: &Path) -> Result<Credentials, String> {
        self.check()?;
        let certificates = source_of(file, &self.client_certificate_data, &self.client_certificate)?;
        let identity = match (certificates, source_of(file, &self.client_key_data, &self.client_key)?) {
            (Some(certificates), Some(key)) => Some((certificates, key)),
            (None, None) => None,
            _ => return Err("a client certificate needs its key, and a key its certificate".to_owned()),
        };
        let of_file = self.token_file.as_ref().map(|path| Source::File(beside(file, path)));
        let token = of_file.or_else(|| self.token.clone().map(|token| Source::Text(token.into_bytes())));
        Ok((identity, token))
    }

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

    fn access(text: &str, file: &Path) -> Result<KubernetesAccess, String> {
        parse(text).and_then(|config| super::access(&[(file, &config)]).map_err(|(_, why)| why))
    }

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

    /// `KUBECONFIG=a:b`, as clusters' tools append to it.
    #[test]
    fn of_several_files_the_first_one_with_an_entry_counts() {
        let context = "current-context: c\ncontexts:\n- context:\n    cluster: k\n    user: u\n  name: c\n";
        let cluster =
            "clusters:\n- cluster:\n    certificate-authority: ca.pem\n    server: https://k:1\n  name: k\n";
        let user = "users:\n- name: u\n  user:\n    tokenFile: token\n";
        let other = "current-context: other\nclusters:\n- cluster:\n    server: https://other:1\n  name: k\n";
        let configs = [context, cluster, user, other].map(|text| parse(text).unwrap());
        let files = ["/a/config", "/b/config", "/c/config", "/d/config"].map(Path::new);
        let both: Vec<_> = files.into_iter().zip(&configs).collect();
        let access = super::access(&both).map_err(|(_, why)| why).unwrap();
        assert_eq!((access.url.as_str(), access.origin.as_path()), ("https://k:1", files[0]));
        assert_eq!(text(access.ca.as_ref().unwrap()), "/b/ca.pem");
        assert_eq!(text(access.token.as_ref().unwrap()), "/c/token");
        let (file, why) = super::access(&both[..1]).unwrap_err();
        assert_eq!((file, why.as_str()), (files[0], "the context `c` names no cluster"));
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
