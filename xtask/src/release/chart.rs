//! The chart and the manifests of a release, whose images are pinned by their digests.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use super::VERSION;
use super::origin::Origin;
use crate::archive::{Archive, gzip};
use crate::files::files;
use crate::image::Pinned;
use crate::process::{capture, command};

const CHART: &str = "deploy/helm/bulkhead";

/// The manifest of what the chart installs without values, which needs nothing of the nodes, under a name that is the same in
/// each release, so that a link leads to the newest.
pub const MANIFEST: &str = "bulkhead.yaml";

/// The deployments that get a manifest, and the chart's values for each.
const DEPLOYMENTS: [(&str, &str); 2] = [
    ("container", "form=container,pools[0].name=default,pools[0].directory=/srv/bulkhead/default"),
    ("host-service", "form=host-service"),
];

/// What may be applied beside either deployment: directories of a file of the same name.
const OPTIONAL: [&str; 3] = ["image-class", "labels", "renewal"];

/// The namespace in the manifests.
const NAMESPACE: &str = "bulkhead-system";

/// helm cannot know which release of Kubernetes the manifests are for. They are the same for all of them.
const KUBE_VERSION: &str = "1.36.0";

/// Writes the chart, and the manifests for kubectl that helm renders from it.
pub fn write(source: &Path, images: &[Pinned], origin: &Origin, helm: &Path, directory: &Path) -> Result<()> {
    let chart = directory.join(format!("bulkhead-{VERSION}.tgz"));
    fs::write(&chart, package(&source.join(CHART), images, origin)?)?;
    let namespace = fs::read_to_string(source.join("deploy/kubernetes/base/namespace.yaml"))?;
    let rendered = |values: &str| -> Result<String> {
        let mut template = command(helm);
        template.args(["template", "bulkhead"]).arg(&chart).args(["--namespace", NAMESPACE]);
        template.args(["--kube-version", KUBE_VERSION, "--set", "labels=never", "--set", values]);
        let objects = capture(&mut template)?;
        let both = values.starts_with("form=container");
        for image in images.iter().filter(|image| both || image.name == "bulkhead-frontend") {
            let reference = format!("{}:{VERSION}@{}", image.repository, image.digest);
            ensure!(objects.contains(&format!("image: {reference}\n")), "the chart does not name {reference}");
        }
        Ok(format!("{namespace}{objects}"))
    };
    fs::write(directory.join(MANIFEST), rendered("form=container")?)?;
    for (name, values) in DEPLOYMENTS {
        write_manifest(directory, name, &rendered(values)?)?;
    }
    for optional in OPTIONAL {
        let objects = fs::read_to_string(source.join(format!("deploy/kubernetes/{optional}/{optional}.yaml")))?;
        write_manifest(directory, optional, &objects)?;
    }
    Ok(())
}

fn write_manifest(directory: &Path, name: &str, objects: &str) -> Result<()> {
    Ok(fs::write(directory.join(format!("bulkhead-{VERSION}-{name}.yaml")), objects)?)
}

/// Packs the chart like `helm package`, but with the date of the commit instead of the current time.
fn package(chart: &Path, images: &[Pinned], origin: &Origin) -> Result<Vec<u8>> {
    let mut archive = Archive::new(origin.date);
    for (path, mut content) in files(chart)? {
        match path.as_str() {
            ".helmignore" => continue,
            "values.yaml" => content = pin(std::str::from_utf8(&content)?, images)?.into_bytes(),
            _ => {}
        }
        archive.file(&format!("bulkhead/{path}"), 0o644, &content)?;
    }
    Ok(gzip(&archive.finish()?)?)
}

/// The values with the repositories and digests of the images filled in.
fn pin(values: &str, images: &[Pinned]) -> Result<String> {
    let mut pinned = values.to_owned();
    for Pinned { name, repository, digest } in images {
        let image = pinned.split_once(&format!("repository: {name}\n"));
        let parts = image.and_then(|(before, image)| Some((before, image.split_once("digest: \"\"\n")?)));
        let parts = parts.filter(|(_, (between, _))| !between.contains("repository: "));
        let (before, (between, after)) =
            parts.with_context(|| format!("values.yaml has no image {name} with an empty digest"))?;
        pinned = format!("{before}repository: {repository}\n{between}digest: {digest}\n{after}");
    }
    Ok(pinned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pinned(name: &'static str) -> Pinned {
        Pinned { name, repository: format!("registry.example.com/{name}"), digest: format!("sha256:{name}") }
    }

    #[test]
    fn values_name_the_digest_of_each_image() {
        let values =
            "a:\n  image:\n    repository: one\n    # Why.\n    digest: \"\"\nb:\n  repository: two\n  digest: \"\"\n";
        let expected = "a:\n  image:\n    repository: registry.example.com/one\n    # Why.\n    digest: sha256:one\n\
                        b:\n  repository: registry.example.com/two\n  digest: sha256:two\n";
        assert_eq!(pin(values, &[pinned("one"), pinned("two")]).unwrap(), expected);
        assert!(pin(values, &[pinned("one"), pinned("three")]).is_err());
        assert!(pin(&values.replacen("digest", "tag", 1), &[pinned("one"), pinned("two")]).is_err());
    }

    #[test]
    fn the_chart_has_an_image_for_each_of_ours() {
        let values = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(CHART).join("values.yaml");
        let values = fs::read_to_string(values).unwrap();
        pin(&values, &[pinned("bulkhead-frontend"), pinned("bulkhead-privhelper")]).unwrap();
    }
}
