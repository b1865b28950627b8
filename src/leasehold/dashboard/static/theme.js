// Light or dark: as the system says, until the button is used.

let chosenHere = null;

// A browser may refuse to store anything.
function remembered() {
  try {
    return chosenHere ?? localStorage.getItem('theme');
  } catch {
    return chosenHere;
  }
}

function remember(theme) {
  chosenHere = theme;
  try {
    localStorage.setItem('theme', theme);
  } catch {
    // Then it lasts until the page is closed.
  }
}

export function startTheme(button) {
  const system = matchMedia('(prefers-color-scheme: dark)');
  const apply = () => {
    const chosen = remembered();
    const isDark = chosen ? chosen === 'dark' : system.matches;
    document.documentElement.dataset.theme = isDark ? 'dark' : 'light';
    button.setAttribute('aria-pressed', isDark);
  };
  button.addEventListener('click', () => {
    remember(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
    apply();
  });
  system.addEventListener('change', apply);
  apply();
}
