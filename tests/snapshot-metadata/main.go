// Lists and verifies the blocks of snapshots with the reference client of the service.
package main

import (
	"context"
	"flag"
	"log"
	"os"

	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/iterator"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	log.SetFlags(0)
	var args iterator.Args
	kubeconfig := flag.String("kubeconfig", "", "as whom to ask")
	source := flag.String("source-device-path", "", "a copy of the snapshot: verify instead of listing")
	target := flag.String("target-device-path", "", "a copy of the previous snapshot, or as many zeros: made equal")
	flag.StringVar(&args.Namespace, "namespace", "", "of the VolumeSnapshots")
	flag.StringVar(&args.SnapshotName, "snapshot", "", "name of the VolumeSnapshot")
	flag.StringVar(&args.PrevSnapshotID, "previous-snapshot-id", "", "handle of an earlier one")
	flag.StringVar(&args.PrevSnapshotName, "previous-snapshot", "", "name of an earlier one")
	flag.StringVar(&args.SANamespace, "service-account-namespace", "", "of the account")
	flag.StringVar(&args.SAName, "service-account", "", "account whose token is sent")
	flag.Int64Var(&args.StartingOffset, "starting-offset", 0, "first byte")
	results := flag.Int("max-results", 0, "ranges in a record")
	flag.Parse()
	args.MaxResults = int32(*results)
	args.Emitter = &iterator.JSONEmitter{Writer: os.Stdout}
	if *source != "" {
		from, err := os.Open(*source)
		check(err)
		to, err := os.OpenFile(*target, os.O_RDWR, 0)
		check(err)
		args.Emitter = &iterator.VerifierEmitter{SourceDevice: from, TargetDevice: to}
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	check(err)
	args.Clients, err = iterator.BuildClients(config)
	check(err)
	check(iterator.GetSnapshotMetadata(context.Background(), args))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
