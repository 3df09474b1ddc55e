//! A JSON object whose fields keep their order and, unless they are changed, their bytes.
//!
//! Order has a meaning: chat templates write tools and arguments into the prompt as they stand. A request with another order
//! is another prompt.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

/// An object, field by field.
#[derive(Clone, Debug, Default)]
pub(super) struct OrderedObject(Vec<(String, Box<RawValue>)>);

impl OrderedObject {
    /// Reads an object.
    pub(super) fn read(json: &[u8]) -> Option<OrderedObject> {
        serde_json::from_slice(json).ok()
    }

    /// The bytes of a field. Of a field that stands twice the last one counts, as in engines.
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        let field = self.0.iter().rev().find(|(key, _)| key == name);
        field.map(|(_, value)| value.get().as_bytes())
    }

    /// A field, if it has this type.
    pub(super) fn parse<'a, T: Deserialize<'a>>(&'a self, name: &str) -> Option<T> {
        serde_json::from_slice(self.get(name)?).ok()
    }

    /// Changes a field where it stands, or adds it at the end.
    pub(super) fn set(&mut self, name: &str, value: &impl Serialize) {
        let Ok(value) = to_raw_value(value) else { return };
        match self.0.iter_mut().rev().find(|(key, _)| key == name) {
            Some((_, before)) => *before = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    /// Removes a field. Returns whether it was there.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|(key, _)| key != name);
        self.0.len() < before
    }

    /// The values of all fields.
    pub(super) fn values(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|(_, value)| value.get().as_bytes())
    }

    /// The object as text.
    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Serialize for OrderedObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for OrderedObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OrderedObject, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = OrderedObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OrderedObject, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(OrderedObject(fields))
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_their_order_and_their_bytes() {
        let mut object = OrderedObject::read(br#"{"z":1.50,"b": {"y":1,"a":2},"a":"\u0041"}"#).unwrap();
        assert_eq!(object.to_json(), r#"{"z":1.50,"b":{"y":1,"a":2},"a":"\u0041"}"#);
        object.set("b", &7);
        object.set("c", &"new");
        assert!(object.remove("z") && !object.remove("z"));
        assert_eq!(object.to_json(), r#"{"b":7,"a":"\u0041","c":"new"}"#);
        assert_eq!(
            (object.parse::<u32>("b"), object.parse::<u32>("a"), object.get("z")),
            (Some(7), None, None)
        );
        assert!(OrderedObject::read(b"[]").is_none());
    }
}
