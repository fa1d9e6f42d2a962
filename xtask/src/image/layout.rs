//! The OCI image layout: blobs named by their digests, and the files that refer to them.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fs_err::File;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::archive::{Archive, gzip};
use crate::checksum::sha256;
use crate::workspace::Architecture;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A part of an image.
pub struct Blob {
    media_type: &'static str,
    /// Its name.
    pub digest: String,
    content: Vec<u8>,
}

impl Blob {
    fn new(media_type: &'static str, content: Vec<u8>) -> Self {
        Blob { media_type, digest: format!("sha256:{}", sha256(&content)), content }
    }

    fn json(media_type: &'static str, value: &Value) -> Self {
        Blob::new(media_type, value.to_string().into_bytes())
    }

    fn descriptor(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.content.len() })
    }

    fn path(&self) -> String {
        format!("blobs/{}", self.digest.replace(':', "/"))
    }
}

/// An image for one architecture.
pub struct Manifest {
    config: Blob,
    layer: Blob,
    manifest: Blob,
    architecture: Architecture,
}

impl Manifest {
    /// Made from its only layer, and from what its configuration says besides the platform and the layer. Registries
    /// and their clients compress uncompressed layers, which changes the digests; a node that imports an archive has
    /// less to do if nothing is compressed.
    pub fn new(layer: Vec<u8>, compressed: bool, mut config: Value, architecture: Architecture) -> io::Result<Self> {
        let plain = Blob::new("application/vnd.oci.image.layer.v1.tar", layer);
        config["architecture"] = architecture.debian().into();
        config["os"] = "linux".into();
        config["rootfs"] = json!({ "type": "layers", "diff_ids": [plain.digest] });
        let layer = match compressed {
            true => Blob::new("application/vnd.oci.image.layer.v1.tar+gzip", gzip(&plain.content)?),
            false => plain,
        };
        let config = Blob::json("application/vnd.oci.image.config.v1+json", &config);
        let manifest = "application/vnd.oci.image.manifest.v1+json";
        let manifest = Blob::json(
            manifest,
            &json!({
                "schemaVersion": 2,
                "mediaType": manifest,
                "config": config.descriptor(),
                "layers": [layer.descriptor()],
            }),
        );
        Ok(Manifest { config, layer, manifest, architecture })
    }

    fn descriptor(&self) -> Value {
        let mut descriptor = self.manifest.descriptor();
        descriptor["platform"] = json!({ "architecture": self.architecture.debian(), "os": "linux" });
        descriptor
    }

    fn blobs(&self) -> [&Blob; 3] {
        [&self.config, &self.manifest, &self.layer]
    }
}

/// An archive with the image for one architecture, and with the list by which `docker load` finds the same blobs.
pub fn single(image: &Manifest, names: &[&str]) -> io::Result<Vec<u8>> {
    let docker = json!([{ "Config": image.config.path(), "RepoTags": names, "Layers": [image.layer.path()] }]);
    let entries = names.iter().map(|name| named(image.descriptor(), name)).collect();
    archive(entries, &[("manifest.json", docker)], &image.blobs())
}

/// An index over the images for all architectures. Kubernetes manifests refer to its digest.
pub fn index(images: &[Manifest]) -> Blob {
    let manifests: Vec<Value> = images.iter().map(Manifest::descriptor).collect();
    Blob::json(INDEX, &json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests }))
}

/// An archive with the index and its images.
pub fn multiple(index: &Blob, images: &[Manifest], name: &str) -> io::Result<Vec<u8>> {
    let mut blobs: Vec<&Blob> = images.iter().flat_map(Manifest::blobs).collect();
    blobs.push(index);
    archive(vec![named(index.descriptor(), name)], &[], &blobs)
}

/// A descriptor with the full reference that a container runtime makes of an image name in a pod: without a registry, it
/// is Docker's.
fn named(mut descriptor: Value, name: &str) -> Value {
    let reference = if name.contains('/') { name.to_owned() } else { format!("docker.io/library/{name}") };
    descriptor["annotations"] =
        json!({ "io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference });
    descriptor
}

fn archive(entries: Vec<Value>, more: &[(&str, Value)], blobs: &[&Blob]) -> io::Result<Vec<u8>> {
    let layout = ("oci-layout", json!({ "imageLayoutVersion": "1.0.0" }));
    let index = ("index.json", json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": entries }));
    let mut archive = Archive::new(Timestamp::UNIX_EPOCH);
    for (path, content) in [layout, index].iter().chain(more) {
        archive.file(path, 0o644, content.to_string().as_bytes())?;
    }
    for blob in blobs {
        archive.file(&blob.path(), 0o644, &blob.content)?;
    }
    archive.finish()
}

/// The compressed layer, and the configuration, of the image for one architecture in an archive with an index. Fails if
/// a blob does not match its digest.
pub fn read(archive: &Path, architecture: Architecture) -> Result<(Vec<u8>, Value)> {
    let file = File::open(archive)?;
    let mut blobs = BTreeMap::new();
    for entry in tar::Archive::new(file).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        blobs.insert(path, content);
    }
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().context("a descriptor has no digest")?;
        let content = blobs.get(&format!("blobs/{}", digest.replace(':', "/")));
        let content = content.with_context(|| format!("the archive lacks {digest}"))?;
        ensure!(digest == format!("sha256:{}", sha256(content)), "a blob is not {digest}");
        anyhow::Ok(content)
    };
    let parse = |content: &[u8]| serde_json::from_slice::<Value>(content).context("parse a part of the image");
    let names = parse(blobs.get("index.json").context("the archive has no index.json")?)?;
    let index = parse(blob(&names["manifests"][0])?)?;
    let ours = |manifest: &&Value| manifest["platform"]["architecture"] == architecture.debian();
    let descriptor = index["manifests"].as_array().into_iter().flatten().find(ours);
    let descriptor = descriptor.with_context(|| format!("there is no image for {}", architecture.debian()))?;
    let manifest = parse(blob(descriptor)?)?;
    Ok((blob(&manifest["layers"][0])?.clone(), parse(blob(&manifest["config"])?)?))
}
