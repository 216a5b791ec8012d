// A candidate made of client-go's own leaderelection package, as a peer for tests of interoperation.
//
//	peer -kubeconfig FILE -lease NAME -identity ME -duration 4s -deadline 3s -period 500ms
//
// Says "acquired" and "lost" on its output, each with the time of day in milliseconds, and releases on SIGTERM.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func say(what string) {
	fmt.Printf("%s %d\n", what, time.Now().UnixNano()/int64(time.Millisecond))
}

func main() {
	config := flag.String("kubeconfig", "", "where the server is")
	name := flag.String("lease", "", "which lease of the namespace default")
	identity := flag.String("identity", "", "who we are")
	duration := flag.Duration("duration", 4*time.Second, "LeaseDuration")
	deadline := flag.Duration("deadline", 3*time.Second, "RenewDeadline")
	period := flag.Duration("period", 500*time.Millisecond, "RetryPeriod")
	flag.Parse()
	rand.Seed(time.Now().UnixNano()) // as Kubernetes' own programs do: else all peers wait the same "random" times

	rest, err := clientcmd.BuildConfigFromFlags("", *config)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: "default", Name: *name},
			Client:     kubernetes.NewForConfigOrDie(rest).CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: *identity},
		},
		LeaseDuration:   *duration,
		RenewDeadline:   *deadline,
		RetryPeriod:     *period,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { say("acquired") },
			OnStoppedLeading: func() { say("lost") },
		},
	})
}
