//! The objects of one kind that a watch has shown. Each is kept as JSON, in some hundred bytes; as the library's type,
//! whose fields are mostly empty, it would take ten times as many.

use std::collections::HashMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::mem::replace;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use k8s_openapi::serde::Serialize;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use memchr::memmem::Finder;

/// A kind of objects that can be kept.
pub trait Kept:
    Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
}

impl<K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static> Kept for K {}

/// By namespace and name.
type Objects = HashMap<Box<str>, Arc<[u8]>>;

/// The objects. Clones share them.
#[derive(Debug)]
pub struct Known<K> {
    shared: Arc<RwLock<State>>,
    kind: PhantomData<fn() -> K>,
}

#[derive(Debug, Default)]
struct State {
    objects: Objects,
    version: u64,
}

impl<K> Clone for Known<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), kind: PhantomData }
    }
}

impl<K: Kept> Known<K> {
    /// No objects, and the only way to change that.
    pub fn new() -> (Self, Writer<K>) {
        let known = Self { shared: Arc::default(), kind: PhantomData };
        (known.clone(), Writer { known, listed: None })
    }

    /// Returns the object, as it was last seen.
    pub fn get(&self, object: &ObjectRef<K>) -> Option<K> {
        let kept = self.read().objects.get(&*key(object)).cloned();
        kept.map(|kept| object_of(&kept))
    }

    /// All objects, one after another.
    pub fn all(&self) -> impl Iterator<Item = K> + use<K> {
        let kept: Vec<_> = self.read().objects.values().cloned().collect();
        kept.into_iter().map(|kept| object_of(&kept))
    }

    /// Those in which `name` occurs. The others are only searched for it, which is far quicker than to look at them.
    pub fn mentioning(&self, name: &str) -> impl Iterator<Item = K> + use<K> {
        let name = Finder::new(name);
        let kept: Vec<_> = self.read().objects.values().filter(|kept| name.find(kept).is_some()).cloned().collect();
        kept.into_iter().map(|kept| object_of(&kept))
    }

    /// A number that is another one once anything has changed.
    pub fn version(&self) -> u64 {
        self.read().version
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Objects) -> T) -> T {
        let mut state = self.shared.write().unwrap_or_else(PoisonError::into_inner);
        state.version += 1;
        change(&mut state.objects)
    }
}

/// Changes what is known, as a watch reports it.
#[derive(Debug)]
pub struct Writer<K> {
    known: Known<K>,
    /// What a list has shown so far, which replaces all that is known once it is complete.
    listed: Option<Objects>,
}

impl<K: Kept> Writer<K> {
    /// Takes in what the watch reports. Returns the objects that are new, changed or gone.
    ///
    /// Every watch starts with a list, and may have to start again with another one. What a list adds and what it lacks is
    /// reported when it is complete: before that, a reader would find what was known before.
    pub fn take(&mut self, event: &Event<K>) -> Vec<ObjectRef<K>> {
        match event {
            Event::Init => {
                self.listed = Some(Objects::default());
                Vec::new()
            }
            Event::InitApply(object) => {
                self.listed.get_or_insert_default().insert(key(&ObjectRef::from_obj(object)), kept(object));
                Vec::new()
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                let mut gone = self.known.change(|objects| replace(objects, listed));
                gone.retain(|key, _| !self.known.read().objects.contains_key(key));
                let gone = gone.values().map(|kept| object_of::<K>(kept));
                gone.chain(self.known.all()).map(|object| ObjectRef::from_obj(&object)).collect()
            }
            Event::Apply(object) => {
                let changed = ObjectRef::from_obj(object);
                self.known.change(|objects| objects.insert(key(&changed), kept(object)));
                vec![changed]
            }
            Event::Delete(object) => {
                let gone = self.known.change(|objects| objects.remove(&key(&ObjectRef::from_obj(object))));
                gone.iter().map(|kept| ObjectRef::from_obj(&object_of::<K>(kept))).collect()
            }
        }
    }
}

fn key<K: Kept>(object: &ObjectRef<K>) -> Box<str> {
    match &object.namespace {
        Some(namespace) => format!("{namespace}/{}", object.name).into(),
        None => object.name.as_str().into(),
    }
}

fn kept<K: Kept>(object: &K) -> Arc<[u8]> {
    serde_json::to_vec(object).expect("what came as JSON can be JSON again").into()
}

fn object_of<K: Kept>(kept: &[u8]) -> K {
    serde_json::from_slice(kept).expect("what was an object can be one again")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::{from_value, json};

    use super::*;

    fn object(name: &str, uid: &str) -> ConfigMap {
        from_value(json!({ "metadata": { "namespace": "n", "name": name, "uid": uid }, "data": { "a": "b" } })).unwrap()
    }

    #[test]
    fn an_object_is_what_it_was() {
        let (known, mut writer) = Known::new();
        writer.take(&Event::Apply(object("a", "1")));
        writer.take(&Event::Apply(object("b", "2")));
        let named = |name: &str| ObjectRef::new(name).within("n");
        assert_eq!(known.get(&named("a")), Some(object("a", "1")));
        assert_eq!(known.get(&ObjectRef::new("a")), None, "of another namespace");
        assert_eq!(known.mentioning("b").collect::<Vec<_>>().len(), 2, "in a name or elsewhere");
        assert_eq!(known.mentioning("\"2\"").collect::<Vec<_>>(), [object("b", "2")]);
        assert_eq!(writer.take(&Event::Delete(object("a", "1"))), [named("a")]);
        assert_eq!(known.all().collect::<Vec<_>>(), [object("b", "2")]);
    }

    #[test]
    fn the_version_tells_of_changes() {
        let (known, mut writer) = Known::new();
        let mut versions = vec![known.version()];
        for event in [Event::Apply(object("a", "1")), Event::Init, Event::InitDone] {
            writer.take(&event);
            versions.push(known.version());
        }
        assert!(versions[0] < versions[1] && versions[1] == versions[2] && versions[2] < versions[3], "{versions:?}");
    }
}
