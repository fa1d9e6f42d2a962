// Runs the CSI community's sanity suite against one endpoint. A program of its own around the suite's package, because
// only there can be set how often calls are repeated.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// repetitions is how often the suite repeats each call that must be idempotent.
const repetitions = 5

// copying are the specs that take a snapshot of a volume, or copy it, and expect that to succeed.
var copying = []string{
	"should create volume from an existing source",
	"ListSnapshots .* should return snapshots that match",
	"ListSnapshots .* check the presence of new snapshots",
	"ListSnapshots .* should return next token",
	"GetSnapshot .* should return snapshot that match",
	"DeleteSnapshot .* should return appropriate values",
	"CreateSnapshot .* with already existing name",
	"CreateSnapshot .* with maximum-length name",
	"CreateSnapshot .* with accessibility requirements",
}

// uncopied is why these are not run.
const uncopied = "volumes with these parameters cannot be copied"

// outcome receives the verdict of the suite, as *testing.T would.
type outcome struct{ failed bool }

func (o *outcome) Fail() { o.failed = true }

// settled has each reply encoded once. The suite compares the places in one reply with those that it has sent, with what the
// library keeps in a message beside its fields, and a message has that only once it has been encoded.
func settled(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, call grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if err := call(ctx, method, request, reply, connection, options...); err != nil {
		return err
	}
	_, err := proto.Marshal(reply.(proto.Message))
	return err
}

// pairs is a flag whose values are collected as keys and values.
func pairs(name, usage string) map[string]string {
	collected := map[string]string{}
	flag.Func(name, usage, func(pair string) error {
		key, value, found := strings.Cut(pair, "=")
		if !found {
			return fmt.Errorf("no = in %q", pair)
		}
		collected[key] = value
		return nil
	})
	return collected
}

func main() {
	config := sanity.NewTestConfig()
	config.IdempotentCount = repetitions
	config.DialOptions = append(config.DialOptions, grpc.WithChainUnaryInterceptor(settled))
	flag.StringVar(&config.Address, "endpoint", "", "CSI endpoint, unix:///PATH")
	flag.StringVar(&config.TargetPath, "targets", "", "directory to make and publish in; its parent exists")
	flag.StringVar(&config.StagingPath, "staging", "", "directory to make and stage in, should the driver want that")
	flag.StringVar(&config.TestVolumeAccessType, "access", "mount", "mount or block")
	flag.Int64Var(&config.TestVolumeSize, "size", 16<<20, "size of volumes in bytes")
	flag.Int64Var(&config.TestVolumeExpandSize, "expanded-size", 32<<20, "size of volumes that have grown")
	volumes := flag.String("volumes", "", "what the report calls the volumes; their access unless it is given")
	uncopyable := flag.Bool("uncopyable", false, "volumes with these parameters cannot be copied: skip what copies one")
	config.TestVolumeParameters = pairs("parameter", "KEY=VALUE, a parameter of volumes; may be repeated")
	config.TestVolumeMutableParameters = pairs("attribute", "KEY=VALUE, what volumes are modified to have; may be repeated")
	flag.Parse()
	if config.Address == "" || config.TargetPath == "" || config.StagingPath == "" {
		fmt.Fprintln(os.Stderr, "-endpoint, -targets and -staging are needed; see -help")
		os.Exit(2)
	}
	if *volumes == "" {
		*volumes = config.TestVolumeAccessType
	}

	context := sanity.GinkgoTest(&config)
	var report types.Report
	ginkgo.ReportAfterSuite("count", func(finished ginkgo.Report) { report = finished })
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	reporter.Succinct = true
	reporter.NoColor = true
	if *uncopyable {
		suite.SkipStrings = copying
	}
	verdict := &outcome{}
	ginkgo.RunSpecs(verdict, "CSI sanity, "+*volumes, suite, reporter)
	context.Finalize()

	passed, failed, skipped := count(report)
	for _, spec := range report.SpecReports {
		if !spec.State.Is(types.SpecStateSkipped | types.SpecStatePending) && spec.LeafNodeType == types.NodeTypeIt {
			fmt.Printf("time: %.3f s %s: %s\n", spec.RunTime.Seconds(), *volumes, spec.FullText())
		}
		if spec.Failed() {
			fmt.Printf("\n---- %s ----\n%s\n%s\n", spec.FullText(), spec.FailureMessage(), spec.FailureLocation())
		}
	}
	fmt.Printf("\nskipped (%d):\n", len(skipped))
	for _, name := range skipped {
		fmt.Println("  " + name)
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if verdict.failed || failed > 0 || passed == 0 {
		os.Exit(1)
	}
}

// count sorts the specs by how they ended.
func count(report types.Report) (passed, failed int, skipped []string) {
	for _, spec := range report.SpecReports {
		switch {
		case spec.LeafNodeType != types.NodeTypeIt:
			if spec.State.Is(types.SpecStateFailureStates) {
				failed++
			}
		case spec.State == types.SpecStatePassed:
			passed++
		case spec.State.Is(types.SpecStateSkipped | types.SpecStatePending):
			skipped = append(skipped, reason(spec))
		default:
			failed++
		}
	}
	sort.Strings(skipped)
	return passed, failed, skipped
}

// reason is a spec's name and why it was not run.
func reason(spec types.SpecReport) string {
	if spec.State == types.SpecStatePending {
		return spec.FullText() + ": pending in the suite itself"
	}
	if spec.Failure.Message == "" {
		return spec.FullText() + ": " + uncopied
	}
	return spec.FullText() + ": " + spec.Failure.Message
}
