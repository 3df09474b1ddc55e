//! The options that a subcommand was given: flags, environment and file, and where each was written.

use std::path::{Path, PathBuf};

use anyhow::Context;
use warmroute_discovery::read_workers;
use warmroute_operate::{check_paths, check_state_is_writable};

use crate::options::{Options, Written, check_environment, read_file};
use crate::plan::{Plan, exposure, plan, unused};

/// The options of one invocation.
pub struct Given {
    /// Flags and environment.
    pub flags: Options,
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// Flags and environment over the file.
    pub options: Options,
    in_file: Options,
    written: Written,
}

impl Given {
    /// Reads the file, and adds the workers' URLs among the arguments to the flags.
    pub fn read(
        mut flags: Options,
        urls: Vec<String>,
        file: Option<PathBuf>,
        written: &Written,
    ) -> anyhow::Result<Given> {
        check_environment()?;
        let urls = [urls, urls_after_lists(&mut flags)].concat();
        add_urls(&mut flags, urls, written);
        if let Some(Err(error)) = file.as_deref().map(std::fs::File::open) {
            let named = file.unwrap_or_default();
            let error = anyhow::Error::new(error).context(format!("config: cannot read {}", named.display()));
            // As an argument without a flag, the file's own name says it.
            let is_named = written.is_flag("config") || written.is_variable("config");
            return Err(if is_named { written.explain(&error, None) } else { error });
        }
        let in_file = file.as_deref().map(read_file).transpose()?.unwrap_or_default();
        let options = flags.clone().over(in_file.clone());
        Ok(Given { flags, file, options, in_file, written: written.clone() })
    }

    /// The plan. An error names what the user wrote.
    pub fn plan(&self) -> anyhow::Result<Plan> {
        plan(self.options.clone()).map_err(|error| self.explain(&error))
    }

    /// Checks what matters at a start and not at a reload: paths to create, and the file of workers.
    pub fn check_start(&self, plan: &Plan) -> anyhow::Result<()> {
        let worker_file = plan.sources.file.as_deref().map_or(Ok(()), check_worker_file);
        check_paths(plan).and(worker_file).map_err(|error| self.explain(&error))
    }

    /// Options without effect.
    pub fn warnings(&self) -> Vec<String> {
        unused(&self.options).iter().map(|text| self.written.spell_out(text, self.named_file())).collect()
    }

    /// What `serve` warns of when it starts: options without effect, an admin listener that other machines can read, and a
    /// state that cannot be saved.
    pub fn start_warnings(&self, plan: &Plan) -> Vec<String> {
        let exposure = exposure(plan).map(|(says, remedy)| {
            self.written.spell_out(&format!("admin-host: {says}; {remedy}"), self.named_file())
        });
        let unsaved = check_state_is_writable(plan).err();
        let unsaved =
            unsaved.map(|error| format!("{:#}; the next process will start cold", self.explain(&error)));
        self.warnings().into_iter().chain(exposure).chain(unsaved).collect()
    }

    /// An error that names what the user wrote.
    pub fn explain(&self, error: &anyhow::Error) -> anyhow::Error {
        self.written.explain(error, self.named_file())
    }

    fn named_file(&self) -> Option<(&Path, &Options)> {
        self.file.as_deref().map(|file| (file, &self.in_file))
    }
}

/// Later a file that cannot be read keeps the workers known before. At the start there are none, so a wrong path would
/// leave a gateway without workers.
fn check_worker_file(file: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()));
    let listed = text.and_then(|text| read_workers(&text).with_context(|| file.display().to_string()));
    listed.map(|_| ()).context("worker-file")
}

/// Arguments are as good as flags: both together are one list, and both win over the environment.
fn add_urls(flags: &mut Options, mut urls: Vec<String>, written: &Written) {
    if urls.is_empty() {
        return;
    }
    if written.is_flag("worker-urls") {
        urls.extend(flags.discovery.worker_urls.take().unwrap_or_default());
    }
    flags.discovery.worker_urls = Some(urls);
}

/// Takes workers' URLs out of lists. A flag with a list takes all words up to the next flag, also the URLs in
/// `serve --model-path DIR http://a:8000`. No value of these lists is such a URL; the first word is left alone, because
/// it was meant as a value.
fn urls_after_lists(flags: &mut Options) -> Vec<String> {
    let lists = flags.of_type::<Vec<String>>();
    let lists = lists.filter(|(key, _)| !["worker-urls", "worker-dns"].contains(key));
    let is_url = |word: &String| word.starts_with("http://") || word.starts_with("https://");
    let mut urls = Vec::new();
    for list in lists.filter_map(|(_, list)| list.as_mut()).filter(|list| !list.is_empty()) {
        let (behind, values): (Vec<_>, Vec<_>) = list.split_off(1).into_iter().partition(is_url);
        list.extend(values);
        urls.extend(behind);
    }
    urls
}

/// Refuses files among the URLs of `serve`.
pub fn refuse_files(urls: &[String]) -> anyhow::Result<()> {
    match urls.iter().find(|text| is_file(text)) {
        Some(file) => anyhow::bail!(
            "`{file}` is a file, not the URL of a worker; for a configuration file write: warmroute serve --config {file}"
        ),
        None => Ok(()),
    }
}

/// Splits the arguments of `check` and `doctor` into one configuration file and workers' URLs. The file may be a flag.
pub fn file_and_urls(
    places: &[String],
    config: Option<&Path>,
    written: &Written,
) -> anyhow::Result<(Option<PathBuf>, Vec<String>)> {
    let (urls, mut files): (Vec<_>, Vec<_>) = places.iter().cloned().partition(|place| place.contains("://"));
    if files.is_empty() || written.is_flag("config") {
        files.extend(config.map(|file| file.display().to_string()));
    }
    match files.as_slice() {
        [] => Ok((None, urls)),
        [file] => Ok((Some(PathBuf::from(file)), urls)),
        [first, second, ..] => {
            anyhow::bail!("two configuration files, `{first}` and `{second}`: give one")
        }
    }
}

fn is_file(text: &str) -> bool {
    !text.contains("://") && (text.ends_with(".toml") || Path::new(text).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_among_the_urls_is_refused_with_the_right_command() {
        refuse_files(&["http://a:1".to_owned(), "10.0.0.1:80".to_owned()]).unwrap();
        let error = refuse_files(&["conf.toml".to_owned()]).unwrap_err().to_string();
        assert!(error.ends_with("warmroute serve --config conf.toml"), "{error}");
    }

    #[test]
    fn urls_behind_a_list_are_workers() {
        let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        let mut flags = Options::default();
        flags.events.model_path = words(&["/m", "http://a:1", "/n", "https://b:1"]);
        flags.routing.shadow = words(&["http://c:1"]);
        flags.tracing.trace_attributes = words(&["a=b", "http://d:1"]);
        flags.discovery.worker_dns = words(&["http://e:1", "http://f:1"]);
        assert_eq!(Some(urls_after_lists(&mut flags)), words(&["http://a:1", "https://b:1", "http://d:1"]));
        assert_eq!(flags.events.model_path, words(&["/m", "/n"]));
        assert_eq!(flags.routing.shadow, words(&["http://c:1"]), "it is no policy, and the error says so");
    }

    #[test]
    fn arguments_of_check_are_one_file_and_urls() {
        let split = |places: &[&str], config: Option<&str>| {
            let places: Vec<String> = places.iter().map(|place| (*place).to_owned()).collect();
            file_and_urls(&places, config.map(Path::new), &Written::default())
                .map_err(|error| error.to_string())
        };
        let file = |name: &str| Some(PathBuf::from(name));
        assert_eq!(split(&[], None), Ok((None, vec![])));
        assert_eq!(split(&["a.toml"], None), Ok((file("a.toml"), vec![])));
        assert_eq!(split(&[], Some("b.toml")), Ok((file("b.toml"), vec![])));
        assert_eq!(split(&["http://a", "a.toml"], None), Ok((file("a.toml"), vec!["http://a".to_owned()])));
        assert_eq!(split(&["a.toml"], Some("env.toml")), Ok((file("a.toml"), vec![])), "the argument wins");
        assert!(split(&["a.toml", "b.toml"], None).unwrap_err().contains("two configuration files"));
    }
}
