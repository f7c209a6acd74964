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

// A provider that replaces another must not take pods before it knows whether
// they may be gated.
func TestAnInterlockIsSettledWhenItKnows(t *testing.T) {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "l"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("a"), RenewTime: ptr.To(metav1.NewMicroTime(time.Unix(0, 0)))},
	}
	for name, c := range map[string]struct {
		objects []runtime.Object
		then    func(*fake.Clientset, *clocktesting.FakeClock) error
		before  bool
		after   bool
	}{
		"there is no lease": {nil, nil, true, true},
		"it comes late": {nil, func(client *fake.Clientset, _ *clocktesting.FakeClock) error {
			_, err := client.CoordinationV1().Leases("ns").Create(t.Context(), lease, metav1.CreateOptions{})
			return err
		}, true, true},
		"nobody renews it for a moment": {[]runtime.Object{lease}, func(_ *fake.Clientset, c *clocktesting.FakeClock) error {
			c.Step(DefaultLeaseDuration)
			return nil
		}, false, false},
		"nobody renews it for the lease duration": {[]runtime.Object{lease}, func(_ *fake.Clientset, c *clocktesting.FakeClock) error {
			c.Step(DefaultLeaseDuration + time.Second)
			return nil
		}, false, true},
		"it is renewed": {[]runtime.Object{lease}, func(client *fake.Clientset, _ *clocktesting.FakeClock) error {
			next := lease.DeepCopy()
			next.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.Unix(2, 0)))
			_, err := client.CoordinationV1().Leases("ns").Update(t.Context(), next, metav1.UpdateOptions{})
			return err
		}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			client, ours := fake.NewClientset(c.objects...), clocktesting.NewFakeClock(time.Now())
			i := NewInterlock(InterlockOptions{Client: client.CoordinationV1(), Namespace: "ns", Name: "l", Clock: ours})
			if i.Settled() {
				t.Error("settled before the first look")
			}
			i.look(t.Context())
			if got := i.Settled(); got != c.before {
				t.Errorf("after the first look: %v", got)
			}
			if c.then != nil {
				if err := c.then(client, ours); err != nil {
					t.Fatal(err)
				}
			}
			i.look(t.Context())
			if got := i.Settled(); got != c.after {
				t.Errorf("then: %v, want %v", got, c.after)
			}
		})
	}
}
