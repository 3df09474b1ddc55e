//! A model's files, in a folder or in the local cache of Hugging Face.
//!
//! ```text
//! $HF_HOME/hub/models--org--name/refs/main            a file that holds a revision
//!                               /snapshots/<revision>/tokenizer.json, tokenizer_config.json, chat_template.jinja, ...
//! ```
//!
//! Nothing is ever downloaded. What is missing is said with the paths that were looked at, because a wrong path is what
//! goes wrong.

use std::env;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use warmroute_prompt::{ChatFormat, ModelFiles, Reading};

/// Largest file of a tokenizer; the largest known are half of this.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Why a model's files cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// There is no such folder, and no such model in the cache.
    #[error("no model `{name}`: neither a folder nor in the Hugging Face cache at {}", cache.display())]
    NotFound {
        /// The name as given.
        name: String,
        /// The folder of the Hugging Face cache that was searched.
        cache: PathBuf,
    },
    /// The cache has the model, but not the revision that it names.
    #[error("{} has no snapshot of revision `{revision}`; download the model again", model.display())]
    NoSnapshot {
        /// The model's folder in the cache.
        model: PathBuf,
        /// The requested revision.
        revision: String,
    },
    /// The folder has no tokenizer in the needed form.
    #[error("{} has no tokenizer.json; prompts of a model that comes only with tiktoken.model (Kimi), tokenizer.model or tekken.json (mistral-common) stay presumed", .0.display())]
    NoTokenizer(PathBuf),
    /// A file could not be read.
    #[error("cannot read {}: {problem}", file.display())]
    Unreadable {
        /// A file of the model.
        file: PathBuf,
        /// The system's error.
        problem: io::Error,
    },
    /// It is no regular file: reading a pipe or a device may never end.
    #[error("{} is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// A file is larger than any tokenizer.
    #[error("{} is larger than {} MiB, which no tokenizer file is", .0.display(), FILE_BYTES_MAX >> 20)]
    TooLarge(PathBuf),
}

/// The local cache of Hugging Face.
#[derive(Clone, Debug)]
pub struct HubCache(PathBuf);

impl HubCache {
    /// From the environment: `HF_HUB_CACHE`, or `HF_HOME/hub`, or in the home folder.
    pub fn from_env() -> HubCache {
        let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = || variable("HOME").unwrap_or_default();
        let hub = variable("HF_HUB_CACHE")
            .or_else(|| variable("HF_HOME").map(|home| home.join("hub")))
            .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("huggingface/hub")));
        HubCache(hub.unwrap_or_else(|| home().join(".cache/huggingface/hub")))
    }

    /// At this path: the folder that contains `models--org--name`.
    pub fn at(path: impl Into<PathBuf>) -> HubCache {
        HubCache(path.into())
    }

    /// The snapshot of a model: of a revision after `@`, or of the one that `refs/main` names.
    fn snapshot(&self, name: &str) -> Result<Option<PathBuf>, FolderError> {
        let (name, revision) = name.split_once('@').map_or((name, None), |(name, at)| (name, Some(at)));
        let model = self.0.join(format!("models--{}", name.replace('/', "--")));
        if name.contains("..") || name.is_empty() || !model.is_dir() {
            return Ok(None);
        }
        let named = revision.unwrap_or("main");
        let revision = match fs::read_to_string(model.join("refs").join(named)) {
            Ok(revision) => revision.trim().to_owned(),
            Err(_) => named.to_owned(),
        };
        let snapshot = model.join("snapshots").join(&revision);
        if snapshot.is_dir() { Ok(Some(snapshot)) } else { Err(FolderError::NoSnapshot { model, revision }) }
    }
}

/// A folder with a model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFolder(PathBuf);

impl ModelFolder {
    /// Finds a model by path, or by name (`org/model`, `org/model@revision`) in the cache.
    pub fn find(name: &str, cache: &HubCache) -> Result<ModelFolder, FolderError> {
        let folder = Path::new(name);
        if folder.is_dir() {
            return Ok(ModelFolder(folder.to_owned()));
        }
        match cache.snapshot(name)? {
            Some(snapshot) => Ok(ModelFolder(snapshot)),
            None => Err(FolderError::NotFound { name: name.to_owned(), cache: cache.0.clone() }),
        }
    }

    /// Where the files lie: the folder as given, or a snapshot in the cache.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Reads the files that a router needs.
    pub fn read(&self) -> Result<ModelText, FolderError> {
        let tokenizer =
            self.file("tokenizer.json")?.ok_or_else(|| FolderError::NoTokenizer(self.0.clone()))?;
        Ok(ModelText {
            tokenizer,
            tokenizer_config: self.file("tokenizer_config.json")?,
            special_tokens_map: self.file("special_tokens_map.json")?,
            chat_template: self.template()?,
            config: self.file("config.json")?,
        })
    }

    /// chat_template.jinja, or the older chat_template.json around the same text.
    fn template(&self) -> Result<Option<String>, FolderError> {
        if let Some(template) = self.file("chat_template.jinja")? {
            return Ok(String::from_utf8(template).ok());
        }
        let Some(file) = self.file("chat_template.json")? else { return Ok(None) };
        let tree: serde_json::Value = serde_json::from_slice(&file).unwrap_or_default();
        Ok(tree["chat_template"].as_str().map(str::to_owned))
    }

    fn file(&self, name: &str) -> Result<Option<Vec<u8>>, FolderError> {
        let file = self.0.join(name);
        match fs::metadata(&file) {
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => return Ok(None),
            Ok(known) if !known.is_file() => return Err(FolderError::NotAFile(file)),
            _ => {}
        }
        let mut bytes = Vec::new();
        // The length is counted while reading, because the file may grow.
        let read =
            fs::File::open(&file).and_then(|open| open.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
        match read {
            Ok(length) if length as u64 > FILE_BYTES_MAX => Err(FolderError::TooLarge(file)),
            Ok(_) => Ok(Some(bytes)),
            Err(problem) => Err(FolderError::Unreadable { file, problem }),
        }
    }
}

/// A model's files in memory.
#[derive(Clone, Debug, Default, Hash)]
pub struct ModelText {
    /// tokenizer.json
    pub tokenizer: Vec<u8>,
    /// tokenizer_config.json
    pub tokenizer_config: Option<Vec<u8>>,
    /// special_tokens_map.json
    pub special_tokens_map: Option<Vec<u8>>,
    /// chat_template.jinja
    pub chat_template: Option<String>,
    /// config.json
    pub config: Option<Vec<u8>>,
}

impl ModelText {
    /// The files as the core reads them.
    pub fn files(&self, reading: Reading) -> ModelFiles<'_> {
        ModelFiles {
            tokenizer: &self.tokenizer,
            tokenizer_config: self.tokenizer_config.as_deref(),
            special_tokens_map: self.special_tokens_map.as_deref(),
            chat_template: self.chat_template.as_deref(),
            reading,
            chats: self.chats(),
        }
    }

    /// How engines write this model's chats.
    pub fn chats(&self) -> ChatFormat {
        #[derive(serde::Deserialize)]
        struct ModelConfig {
            model_type: String,
        }
        let config =
            self.config.as_deref().and_then(|config| serde_json::from_slice::<ModelConfig>(config).ok());
        // vLLM asks for the same type.
        match config.is_some_and(|config| config.model_type == "gpt_oss") {
            true => ChatFormat::Harmony,
            false => ChatFormat::Template,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test's own folder, removed at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let folder = env::temp_dir().join(format!("warmroute-tokens-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Scratch(folder)
        }

        fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    fn write(folder: &Path, name: &str, text: &str) {
        let file = folder.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn a_model_is_found_by_folder_and_by_name() {
        let home = Scratch::new("find");
        let cached = home.path().join("models--org--name");
        write(&cached, "refs/main", "abc\n");
        write(&cached, "snapshots/abc/tokenizer.json", "new");
        write(&cached, "snapshots/0ld/tokenizer.json", "old");
        write(&cached, "snapshots/abc/chat_template.jinja", "{{ x }}");
        let cache = HubCache::at(home.path());
        let read = |name: &str| ModelFolder::find(name, &cache).unwrap().read().unwrap();
        assert_eq!(read("org/name").tokenizer, b"new");
        assert_eq!(read("org/name").chat_template.unwrap(), "{{ x }}");
        assert_eq!(read("org/name@0ld").tokenizer, b"old");
        assert_eq!(read(cached.join("snapshots/abc").to_str().unwrap()).tokenizer, b"new");
    }

    #[test]
    fn missing_files_are_reported_with_their_path() {
        let home = Scratch::new("missing");
        write(home.path(), "models--org--name/refs/main", "gone");
        write(home.path(), "empty/config.json", "{}");
        let cache = HubCache::at(home.path());
        let find = |name: &str| ModelFolder::find(name, &cache).unwrap_err().to_string();
        assert!(
            find("org/other").contains("no model `org/other`")
                && find("org/other").contains(cache.0.to_str().unwrap())
        );
        assert!(find("org/name").contains("no snapshot of revision `gone`"));
        let folder = ModelFolder::find(home.path().join("empty").to_str().unwrap(), &cache).unwrap();
        let words = folder.read().unwrap_err().to_string();
        assert!(words.contains("no tokenizer.json") && words.contains("tiktoken.model (Kimi)"), "{words}");
    }

    #[test]
    fn only_regular_files_of_a_bounded_size_are_read() {
        let home = Scratch::new("irregular");
        write(home.path(), "tokenizer.json", "{}");
        let read =
            || ModelFolder(home.path().to_owned()).read().map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(read(), Ok(()));
        let config = home.path().join("config.json");
        std::os::unix::fs::symlink("/dev/zero", &config).unwrap();
        assert!(read().unwrap_err().ends_with("config.json is not a regular file"));
        fs::remove_file(&config).unwrap();
        fs::File::create(&config).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert!(read().unwrap_err().contains("larger than 64 MiB"));
    }

    #[test]
    fn a_folder_in_mistral_s_format_is_known_by_its_file() {
        let home = Scratch::new("mistral");
        write(home.path(), "tokenizer.json", "{}");
        let find = || crate::Model::find(home.path().to_str().unwrap(), &HubCache::at("/nowhere")).unwrap();
        assert!(!find().has_mistral_format());
        write(home.path(), "tekken.json", "{}");
        assert!(find().has_mistral_format());
    }

    #[test]
    fn an_older_template_file_is_read_too() {
        let home = Scratch::new("older");
        write(home.path(), "tokenizer.json", "{}");
        write(home.path(), "chat_template.json", r#"{"chat_template":"{{ y }}"}"#);
        let folder = ModelFolder::find(home.path().to_str().unwrap(), &HubCache::at("/nowhere")).unwrap();
        assert_eq!(folder.read().unwrap().chat_template.unwrap(), "{{ y }}");
    }

    #[test]
    fn a_model_of_harmony_is_known_by_its_configuration() {
        let chats = |config: &str| ModelText { config: Some(config.into()), ..ModelText::default() }.chats();
        assert_eq!(chats(r#"{"model_type":"gpt_oss","vocab_size":201088}"#), ChatFormat::Harmony);
        assert_eq!(chats(r#"{"model_type":"llama"}"#), ChatFormat::Template);
        assert_eq!(chats("broken"), ChatFormat::Template);
        assert_eq!(ModelText::default().chats(), ChatFormat::Template);
    }
}
