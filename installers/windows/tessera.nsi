; Tessera's installer for one user. makensis -DVERSION=... -DPROGRAM=folder -DOUT=file tessera.nsi
; Silent: /S, /D=folder (last), /PATH=0 to leave PATH alone. Uninstall: /S keeps models and chats, /MODELS removes them.
Unicode true
!include "MUI2.nsh"
!include "FileFunc.nsh"
!include "WinMessages.nsh"
!insertmacro GetParameters
!insertmacro GetOptions

Name "Tessera"
OutFile "${OUT}"
InstallDir "$LOCALAPPDATA\Programs\Tessera"
InstallDirRegKey HKCU "Software\Tessera" "Folder"
RequestExecutionLevel user
SetCompressor /SOLID lzma
BrandingText "Tessera ${VERSION}"
!define UNINSTALL "Software\Microsoft\Windows\CurrentVersion\Uninstall\Tessera"

!insertmacro MUI_PAGE_WELCOME
!insertmacro MUI_PAGE_DIRECTORY
!insertmacro MUI_PAGE_COMPONENTS
!insertmacro MUI_PAGE_INSTFILES
!define MUI_FINISHPAGE_RUN "$INSTDIR\tessera.exe"
!define MUI_FINISHPAGE_RUN_PARAMETERS "window"
!insertmacro MUI_PAGE_FINISH
!insertmacro MUI_UNPAGE_CONFIRM
!insertmacro MUI_UNPAGE_INSTFILES
!insertmacro MUI_LANGUAGE "English"
!insertmacro MUI_LANGUAGE "German"

Section "Tessera" SecMain
  SectionIn RO
  ; An earlier version's folder goes first: a module that no longer exists must not stay behind.
  RMDir /r "$INSTDIR\_internal"
  SetOutPath "$INSTDIR"
  File /r "${PROGRAM}\*.*"
  WriteRegStr HKCU "Software\Tessera" "Folder" "$INSTDIR"
  CreateDirectory "$SMPROGRAMS\Tessera"
  CreateShortcut "$SMPROGRAMS\Tessera\Tessera.lnk" "$INSTDIR\tessera.exe" "window"
  CreateShortcut "$SMPROGRAMS\Tessera\Uninstall Tessera.lnk" "$INSTDIR\uninstall.exe"
  WriteUninstaller "$INSTDIR\uninstall.exe"
  WriteRegStr HKCU "${UNINSTALL}" "DisplayName" "Tessera"
  WriteRegStr HKCU "${UNINSTALL}" "DisplayVersion" "${VERSION}"
  WriteRegStr HKCU "${UNINSTALL}" "Publisher" "The Tessera authors"
  WriteRegStr HKCU "${UNINSTALL}" "DisplayIcon" "$INSTDIR\tessera.exe"
  WriteRegStr HKCU "${UNINSTALL}" "UninstallString" '"$INSTDIR\uninstall.exe"'
  WriteRegStr HKCU "${UNINSTALL}" "QuietUninstallString" '"$INSTDIR\uninstall.exe" /S'
  WriteRegDWORD HKCU "${UNINSTALL}" "NoModify" 1
  WriteRegDWORD HKCU "${UNINSTALL}" "NoRepair" 1
  ${GetSize} "$INSTDIR" "/S=0K" $0 $1 $2
  IntFmt $0 "0x%08X" $0
  WriteRegDWORD HKCU "${UNINSTALL}" "EstimatedSize" "$0"
SectionEnd

Section "Open .gguf files with Tessera" SecFiles
  WriteRegStr HKCU "Software\Classes\.gguf" "" "Tessera.Model"
  WriteRegStr HKCU "Software\Classes\Tessera.Model" "" "AI model"
  WriteRegStr HKCU "Software\Classes\Tessera.Model\DefaultIcon" "" "$INSTDIR\tessera.exe,0"
  WriteRegStr HKCU "Software\Classes\Tessera.Model\shell\open\command" "" '"$INSTDIR\tessera.exe" window "%1"'
SectionEnd

Section "The tessera command in terminals (PATH)" SecPath
  ${GetParameters} $R0
  ClearErrors
  ${GetOptions} $R0 "/PATH=" $R1
  StrCmp $R1 "0" done
  ReadRegStr $0 HKCU "Environment" "Path"
  ; A list that is longer than a string here can hold would be cut: it is left alone.
  StrLen $1 "$0"
  IntCmp $1 900 0 0 done
  StrCpy $2 "$INSTDIR"
  Push $0
  Push $2
  Call Contains
  Pop $3
  StrCmp $3 "1" done
  StrCmp $0 "" 0 +3
  WriteRegExpandStr HKCU "Environment" "Path" "$INSTDIR"
  Goto tell
  WriteRegExpandStr HKCU "Environment" "Path" "$0;$INSTDIR"
tell:
  WriteRegStr HKCU "Software\Tessera" "Path" "1"
  SendMessage ${HWND_BROADCAST} ${WM_SETTINGCHANGE} 0 "STR:Environment" /TIMEOUT=2000
done:
SectionEnd

; (text, part) on the stack -> "1" where the part is in the text, else "0"
!macro Contains un
Function ${un}Contains
  Exch $R1
  Exch
  Exch $R2
  Push $R3
  Push $R4
  Push $R5
  StrLen $R3 $R1
  StrCpy $R4 0
  loop:
    StrCpy $R5 $R2 $R3 $R4
    StrCmp $R5 "" no
    StrCmp $R5 $R1 yes
    IntOp $R4 $R4 + 1
    Goto loop
  yes:
    StrCpy $R1 "1"
    Goto out
  no:
    StrCpy $R1 "0"
  out:
  Pop $R5
  Pop $R4
  Pop $R3
  Pop $R2
  Exch $R1
FunctionEnd
!macroend
!insertmacro Contains ""

Section "Uninstall"
  ${GetParameters} $R0
  RMDir /r "$INSTDIR\_internal"
  Delete "$INSTDIR\tessera.exe"
  Delete "$INSTDIR\uninstall.exe"
  RMDir "$INSTDIR"
  Delete "$SMPROGRAMS\Tessera\Tessera.lnk"
  Delete "$SMPROGRAMS\Tessera\Uninstall Tessera.lnk"
  RMDir "$SMPROGRAMS\Tessera"
  ReadRegStr $0 HKCU "Software\Classes\.gguf" ""
  StrCmp $0 "Tessera.Model" 0 +2
  DeleteRegKey HKCU "Software\Classes\.gguf"
  DeleteRegKey HKCU "Software\Classes\Tessera.Model"
  DeleteRegKey HKCU "${UNINSTALL}"
  ; PATH: our folder leaves it, everything else stays as it is.
  ReadRegStr $1 HKCU "Software\Tessera" "Path"
  StrCmp $1 "1" 0 nopath
  ReadRegStr $0 HKCU "Environment" "Path"
  StrLen $2 ";$INSTDIR"
  StrLen $3 "$0"
  IntOp $4 $3 - $2
  IntCmp $4 0 0 alone
  StrCpy $5 "$0" $2 $4
  StrCmp $5 ";$INSTDIR" 0 nopath
  StrCpy $0 "$0" $4
  WriteRegExpandStr HKCU "Environment" "Path" "$0"
  Goto nopath
alone:
  StrCmp "$0" "$INSTDIR" 0 nopath
  DeleteRegValue HKCU "Environment" "Path"
nopath:
  DeleteRegKey HKCU "Software\Tessera"
  ClearErrors
  ${GetOptions} $R0 "/MODELS" $R1
  IfErrors ask
  Goto models
ask:
  MessageBox MB_YESNO|MB_DEFBUTTON2 "Also delete your models, chats and settings?" /SD IDNO IDYES models
  Goto end
models:
  RMDir /r "$LOCALAPPDATA\tessera"
end:
SectionEnd
