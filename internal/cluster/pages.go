package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/pager"
)

// pageSize is kubectl's. A page of nodes of 20 KiB takes 10 MB of memory on both sides; all nodes of a
// 5000-node cluster would take 100 MB.
const pageSize = 500

// paged is a client that pages through lists which grow with the cluster: nodes, pods, events and
// Services. Other kinds are listed by release. A list is complete or an error, as without paging; if a
// page expires, the whole list is read again in one request.
type paged struct{ kubernetes.Interface }

func (c paged) CoreV1() typed.CoreV1Interface { return pagedCore{c.Interface.CoreV1()} }

type pagedCore struct{ typed.CoreV1Interface }

func (c pagedCore) Nodes() typed.NodeInterface { return pagedNodes{c.CoreV1Interface.Nodes()} }

func (c pagedCore) Pods(namespace string) typed.PodInterface {
	return pagedPods{c.CoreV1Interface.Pods(namespace)}
}

func (c pagedCore) Events(namespace string) typed.EventInterface {
	return pagedEvents{c.CoreV1Interface.Events(namespace)}
}

func (c pagedCore) Services(namespace string) typed.ServiceInterface {
	return pagedServices{c.CoreV1Interface.Services(namespace)}
}

type pagedNodes struct{ typed.NodeInterface }

func (n pagedNodes) List(ctx context.Context, opts metav1.ListOptions) (*corev1.NodeList, error) {
	return listPages(ctx, opts, n.NodeInterface.List)
}

type pagedPods struct{ typed.PodInterface }

func (p pagedPods) List(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error) {
	return listPages(ctx, opts, p.PodInterface.List)
}

type pagedEvents struct{ typed.EventInterface }

func (e pagedEvents) List(ctx context.Context, opts metav1.ListOptions) (*corev1.EventList, error) {
	return listPages(ctx, opts, e.EventInterface.List)
}

type pagedServices struct{ typed.ServiceInterface }

func (s pagedServices) List(ctx context.Context, opts metav1.ListOptions) (*corev1.ServiceList, error) {
	return listPages(ctx, opts, s.ServiceInterface.List)
}

// listPages calls list page by page. Requests with a limit of their own are passed through.
func listPages[L any, P interface {
	*L
	runtime.Object
}](ctx context.Context, opts metav1.ListOptions, list func(context.Context, metav1.ListOptions) (P, error)) (P, error) {
	if opts.Limit > 0 || opts.Continue != "" {
		return list(ctx, opts)
	}
	pages := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return list(ctx, opts)
	})
	pages.PageSize = pageSize
	found, _, err := pages.List(ctx, opts)
	if err != nil {
		return nil, err
	}
	if whole, ok := found.(P); ok {
		return whole, nil // a single page
	}
	items, err := meta.ExtractList(found)
	if err != nil {
		return nil, fmt.Errorf("joining the pages of a list: %w", err)
	}
	all := P(new(L))
	if err := meta.SetList(all, items); err != nil {
		return nil, fmt.Errorf("joining the pages of a list: %w", err)
	}
	return all, nil
}
