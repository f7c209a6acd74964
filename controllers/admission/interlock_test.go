package admission

import (
	"errors"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

func TestInterlock(t *testing.T) {
	// The Lease's timestamps come from a machine whose clock is a year behind.
	theirs := time.Now().Add(-365 * 24 * time.Hour)
	ours := clocktesting.NewFakeClock(time.Now())
	client := fake.NewClientset()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "l"}}
	if _, err := client.CoordinationV1().Leases("ns").Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	renew := func(holder string) {
		theirs = theirs.Add(2 * time.Second)
		lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: ptr.To(holder), RenewTime: ptr.To(metav1.NewMicroTime(theirs)), LeaseDurationSeconds: ptr.To[int32](1)}
		if _, err := client.CoordinationV1().Leases("ns").Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	i := NewInterlock(InterlockOptions{Client: client.CoordinationV1(), Namespace: "ns", Name: "l", Clock: ours})
	expect := func(alive bool, when string) {
		t.Helper()
		i.look(t.Context())
		if i.Alive() != alive {
			t.Errorf("%s: alive is %t", when, !alive)
		}
	}
	expect(false, "an empty Lease")
	renew("")
	expect(false, "a Lease that nobody holds")
	renew("a")
	expect(true, "a Lease that is taken")
	ours.Step(DefaultLeaseDuration)
	expect(true, "the lease duration after a renewal")
	ours.Step(time.Second)
	expect(false, "longer than the lease duration after a renewal")
	renew("a")
	expect(true, "renewed")
	renew("")
	expect(true, "given up, within the lease duration")
	ours.Step(DefaultLeaseDuration + time.Second)
	expect(false, "given up")
	renew("b")
	expect(true, "another holder")

	fresh := NewInterlock(InterlockOptions{Client: client.CoordinationV1(), Namespace: "ns", Name: "l", Clock: ours})
	fresh.look(t.Context())
	if fresh.Alive() {
		t.Error("a Lease seen once may be an old one")
	}

	client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no API server")
	})
	expect(true, "the API server is away for a moment")
	ours.Step(DefaultLeaseDuration + time.Second)
	expect(false, "the API server is away for long")
}
