//! The objects of one watch. Pure: a list and the lines of a watch go in, the present set comes out.
//!
//! The set is replaced by every list, so an event that was lost is made up for by the next one.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::objects::{ApiObject, Metadata, Status, null_as_empty};

/// Namespace and name.
type ObjectKey = (String, String);

/// The known objects, and the version up to which they are known.
#[derive(Debug)]
pub(super) struct ObjectCache<T> {
    objects: BTreeMap<ObjectKey, T>,
    /// Opaque. `None`: a list is needed.
    version: Option<String>,
    /// Objects of the pages of a list so far.
    pages: BTreeMap<ObjectKey, T>,
    objects_max: usize,
}

/// More objects match than are kept.
#[derive(Debug, PartialEq)]
pub(super) struct TooMany;

/// A page of a list.
#[derive(Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
pub(super) struct Page<T> {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(default = "Vec::new", deserialize_with = "null_as_empty")]
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PageMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// What a line of a watch means.
#[derive(Debug, PartialEq)]
pub(super) enum Event {
    /// The set changed.
    Changed,
    /// The set is the same: a bookmark, or a change of a field that discovery does not read.
    Unchanged,
    /// The version is too old: a list is needed.
    Expired,
    /// The API server ended the watch with an error.
    Failed(String),
    /// The object is one too many, and was left out: a list is needed.
    TooMany,
}

impl<T: ApiObject> ObjectCache<T> {
    pub fn new(objects_max: usize) -> ObjectCache<T> {
        ObjectCache { objects: BTreeMap::new(), version: None, pages: BTreeMap::new(), objects_max }
    }

    /// The objects, ordered by namespace and name.
    pub fn objects(&self) -> impl Iterator<Item = &T> {
        self.objects.values()
    }

    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// The version from which to watch; `None`: a list is needed.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Makes a list necessary. The known objects stay until it is complete.
    pub fn expire(&mut self) {
        self.version = None;
    }

    /// Starts a list.
    pub fn begin_list(&mut self) {
        self.pages.clear();
    }

    /// Adds a page of a list. Returns the token of the next page; `None`: the list is complete and replaces the set.
    pub fn add_page(&mut self, page: Page<T>) -> Result<Option<String>, TooMany> {
        self.pages.extend(page.items.into_iter().map(|object| (key_of(object.metadata()), object)));
        if self.pages.len() > self.objects_max {
            self.pages.clear();
            return Err(TooMany);
        }
        if !page.metadata.next.is_empty() {
            return Ok(Some(page.metadata.next));
        }
        self.objects = std::mem::take(&mut self.pages);
        self.version = Some(page.metadata.resource_version);
        Ok(None)
    }

    /// Applies a line of a watch.
    pub fn apply(&mut self, line: &[u8]) -> Result<Event, serde_json::Error> {
        let line: Line<'_> = serde_json::from_slice(line)?;
        if line.kind == "ERROR" {
            let status: Status = serde_json::from_str(line.object.get())?;
            if status.code == 410 {
                self.expire();
                return Ok(Event::Expired);
            }
            return Ok(Event::Failed(format!("{} {}", status.code, status.message)));
        }
        let object: T = serde_json::from_str(line.object.get())?;
        let (key, uid) = (key_of(object.metadata()), object.metadata().uid.clone());
        let version = object.metadata().resource_version.clone();
        let event = match line.kind.as_str() {
            "ADDED" | "MODIFIED"
                if self.objects.len() >= self.objects_max && !self.objects.contains_key(&key) =>
            {
                self.expire();
                return Ok(Event::TooMany);
            }
            "ADDED" | "MODIFIED" => self.put(key, object),
            // The pod of a StatefulSet is replaced by one of the same name: the end of the old one is no news.
            "DELETED" if self.objects.get(&key).is_some_and(|known| known.metadata().uid == uid) => {
                self.objects.remove(&key);
                Event::Changed
            }
            _ => Event::Unchanged,
        };
        if !version.is_empty() {
            self.version = Some(version);
        }
        Ok(event)
    }

    fn put(&mut self, key: ObjectKey, object: T) -> Event {
        let is_same = |known: &T| {
            // Every change has a new version, also one of fields that are not read.
            let (known, new) = (known.metadata(), object.metadata());
            known.resource_version == new.resource_version && known.uid == new.uid
        };
        if self.objects.get(&key).is_some_and(is_same) {
            return Event::Unchanged;
        }
        self.objects.insert(key, object);
        Event::Changed
    }
}

fn key_of(metadata: &Metadata) -> ObjectKey {
    (metadata.namespace.clone(), metadata.name.clone())
}

#[cfg(test)]
mod tests {
    use super::super::objects::Pod;
    use super::*;

    fn line(kind: &str, name: &str, uid: &str, version: u32) -> Vec<u8> {
        format!(
            r#"{{"type":"{kind}","object":{{"kind":"Pod","metadata":{{"name":"{name}","namespace":"ns","uid":"{uid}","resourceVersion":"{version}"}}}}}}"#
        )
        .into_bytes()
    }

    fn listed(names: &[&str], next: &str) -> Page<Pod> {
        let items: Vec<String> = names
            .iter()
            .map(|name| format!(r#"{{"metadata":{{"name":"{name}","namespace":"ns","uid":"{name}1"}}}}"#))
            .collect();
        let text = format!(
            r#"{{"metadata":{{"resourceVersion":"10","continue":"{next}"}},"items":[{}]}}"#,
            items.join(",")
        );
        serde_json::from_str(&text).unwrap()
    }

    fn names(cache: &ObjectCache<Pod>) -> Vec<&str> {
        cache.objects().map(|pod| pod.metadata.name.as_str()).collect()
    }

    #[test]
    fn a_list_replaces_the_set_when_its_last_page_has_come() {
        let mut cache = ObjectCache::new(3);
        cache.begin_list();
        assert_eq!(cache.add_page(listed(&["a", "b"], "")), Ok(None));
        assert_eq!((names(&cache), cache.version()), (vec!["a", "b"], Some("10")));
        cache.expire();
        cache.begin_list();
        assert_eq!(cache.add_page(listed(&["b"], "more")), Ok(Some("more".into())));
        assert_eq!(names(&cache), ["a", "b"], "half a list removes nothing");
        // The connection breaks, and the list starts again.
        cache.begin_list();
        assert_eq!(cache.add_page(listed(&["c"], "")), Ok(None));
        assert_eq!(names(&cache), ["c"], "an object that vanished without an event is gone");
    }

    #[test]
    fn an_empty_list_may_be_null() {
        let mut cache = ObjectCache::<Pod>::new(3);
        cache.begin_list();
        let page = serde_json::from_str(r#"{"metadata":{"resourceVersion":"3"},"items":null}"#).unwrap();
        assert_eq!(cache.add_page(page), Ok(None));
        assert_eq!((cache.len(), cache.version()), (0, Some("3")));
    }

    #[test]
    fn events_change_the_set_and_advance_the_version() {
        let mut cache = ObjectCache::<Pod>::new(3);
        for (line, event, present, version) in [
            (line("ADDED", "a", "a1", 11), Event::Changed, &["a"][..], "11"),
            (line("ADDED", "a", "a1", 11), Event::Unchanged, &["a"], "11"),
            (line("BOOKMARK", "", "", 15), Event::Unchanged, &["a"], "15"),
            (line("MODIFIED", "a", "a1", 16), Event::Changed, &["a"], "16"),
            (line("ADDED", "a", "a2", 18), Event::Changed, &["a"], "18"),
            (line("DELETED", "a", "a1", 19), Event::Unchanged, &["a"], "19"),
            (line("DELETED", "a", "a2", 20), Event::Changed, &[], "20"),
            (line("DELETED", "a", "a2", 20), Event::Unchanged, &[], "20"),
            (line("LATER", "x", "x1", 21), Event::Unchanged, &[], "21"),
        ] {
            assert_eq!(cache.apply(&line).unwrap(), event);
            assert_eq!((names(&cache).as_slice(), cache.version()), (present, Some(version)));
        }
    }

    #[test]
    fn objects_beyond_the_limit_are_not_kept() {
        let mut cache = ObjectCache::<Pod>::new(3);
        for next in ["more", ""] {
            cache.begin_list();
            assert_eq!(cache.add_page(listed(&["a", "b", "c", "d"], next)), Err(TooMany), "{next:?}");
        }
        assert_eq!((cache.len(), cache.version()), (0, None));
        cache.begin_list();
        assert_eq!(cache.add_page(listed(&["a", "b", "c"], "")), Ok(None));
        assert_eq!(cache.apply(&line("MODIFIED", "a", "a1", 11)).unwrap(), Event::Changed);
        assert_eq!(cache.apply(&line("ADDED", "d", "d1", 12)).unwrap(), Event::TooMany);
        assert_eq!((names(&cache), cache.version()), (vec!["a", "b", "c"], None), "a list says so");
    }

    #[test]
    fn an_expired_version_needs_a_list_and_keeps_the_objects() {
        let mut cache = ObjectCache::<Pod>::new(3);
        cache.apply(&line("ADDED", "a", "a1", 11)).unwrap();
        // As a kube-apiserver sends it.
        let gone = br#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version: 11 (4711)","reason":"Expired","code":410}}"#;
        assert_eq!(cache.apply(gone).unwrap(), Event::Expired);
        assert_eq!((names(&cache), cache.version()), (vec!["a"], None));
        let failed = br#"{"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcd is away"}}"#;
        assert_eq!(cache.apply(failed).unwrap(), Event::Failed("500 etcd is away".into()));
        assert!(cache.apply(b"{\"type\":\"ADDED\"").is_err());
    }
}
