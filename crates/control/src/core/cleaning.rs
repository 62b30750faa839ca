//! Reading what a server says so that no text in it commands a terminal, none is too long, and no
//! list is, whatever they are for.
//!
//! It is done while the message is read, in one go and without a picture of all of its JSON, which
//! would take a hundred times the message's length.

use std::fmt;

use link::{is_printable, printable_prefix};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IgnoredAny, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;

/// Longest text, in characters: a reason with the name of a kernel in it.
pub(super) const LONGEST_TEXT: usize = 2048;
/// Longest list: a server has 1,024 clients, and tells in one packet of as many that have left.
pub(super) const LONGEST_LIST: usize = 4096;

/// A part of serde's that reads, with all texts cleaned and cut and all lists cut on their way
/// through it.
pub(super) struct Clean<T>(pub(super) T);

/// A text that has to be changed, changed.
fn cleaned(text: &str) -> Option<String> {
    let is_clean = text.len() <= LONGEST_TEXT && text.chars().all(is_printable);
    (!is_clean).then(|| printable_prefix(text, LONGEST_TEXT))
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Clean<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(Clean(visitor))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_option(Clean(visitor))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_newtype_struct(name, Clean(visitor))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_enum(name, variants, Clean(visitor))
    }

    // Nothing of it is kept.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_ignored_any(visitor)
    }

    // JSON says what each of these is.
    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Clean<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(formatter)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<V::Value, E> {
        self.0.visit_bool(value)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<V::Value, E> {
        self.0.visit_i64(value)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<V::Value, E> {
        self.0.visit_u64(value)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<V::Value, E> {
        self.0.visit_f64(value)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<V::Value, E> {
        match cleaned(text) {
            Some(text) => self.0.visit_string(text),
            None => self.0.visit_str(text),
        }
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, some: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Clean(some))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Clean(inner))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(CleanList { elements, left: LONGEST_LIST })
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Clean(fields))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(Clean(variant))
    }
}

/// A list, of which so many elements are still taken.
struct CleanList<A> {
    elements: A,
    left: usize,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for CleanList<A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, A::Error> {
        if self.left == 0 {
            while self.elements.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(None);
        }
        self.left -= 1;
        self.elements.next_element_seed(Clean(seed))
    }
}

/// The names of fields are known ones, or of no interest.
impl<'de, A: MapAccess<'de>> MapAccess<'de> for Clean<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.0.next_value_seed(Clean(seed))
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Clean<A> {
    type Error = A::Error;
    type Variant = Clean<A::Variant>;

    fn variant_seed<T: DeserializeSeed<'de>>(
        self,
        seed: T,
    ) -> Result<(T::Value, Self::Variant), A::Error> {
        let (value, variant) = self.0.variant_seed(seed)?;
        Ok((value, Clean(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Clean<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, A::Error> {
        self.0.newtype_variant_seed(Clean(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(length, Clean(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, Clean(visitor))
    }
}

impl<'de, T: DeserializeSeed<'de>> DeserializeSeed<'de> for Clean<T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T::Value, D::Error> {
        self.0.deserialize(Clean(deserializer))
    }
}
