// The views' tabs, by mouse and by arrow keys; the URL's fragment names the shown view.

export class Tabs {
  constructor(list, show) {
    this.tabs = [...list.querySelectorAll("[role=tab]")];
    this.show = show;
    this.tabs.forEach((tab, index) => {
      tab.addEventListener("click", () => this.choose(tab));
      tab.addEventListener("keydown", (event) => {
        const last = this.tabs.length - 1;
        const place = { ArrowRight: index === last ? 0 : index + 1, ArrowLeft: index ? index - 1 : last, Home: 0, End: last }[event.key];
        if (place === undefined) return;
        const next = this.tabs[place];
        event.preventDefault();
        next.focus();
        this.choose(next);
      });
    });
    const named = this.tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash);
    this.choose(named ?? this.tabs[0]);
  }

  choose(chosen) {
    for (const tab of this.tabs) {
      const selected = tab === chosen;
      tab.setAttribute("aria-selected", selected);
      tab.tabIndex = selected ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !selected;
    }
    this.current = chosen.getAttribute("aria-controls");
    history.replaceState(null, "", `#${this.current}`);
    this.show(this.current);
  }
}
